"""Test KeyedMutex: turns in request order, with time-outs, and without leftover locks."""

from __future__ import annotations

import asyncio

import pytest

from raymq.client.produce.ordered_queue_sender import KeyedMutex


def test_turns_come_in_order_and_are_removed_afterwards() -> None:
    """Cover a regression: the lock of each queue and topic was kept forever."""

    async def take_them() -> None:
        turns: KeyedMutex[str] = KeyedMutex()
        came: list[tuple[str, int, bool]] = []
        go_on = asyncio.Event()

        async def work(key: str, number: int, seconds: float = 60.0) -> None:
            async with turns.take(key, seconds) as in_time:
                came.append((key, number, in_time))
                if in_time:
                    await go_on.wait()

        works = [asyncio.create_task(work("a", number)) for number in range(3)]
        works.append(asyncio.create_task(work("b", 3)))
        await asyncio.sleep(0)  # from Python 3.12 on `wait_for` begins at once, before these tasks
        await asyncio.wait_for(work("a", 4, 0.0), 10)
        assert came == [("a", 0, True), ("b", 3, True), ("a", 4, False)]
        works[1].cancel()
        await asyncio.wait(works[1:2])
        assert len(turns) == 2
        go_on.set()
        await asyncio.wait((works[0], *works[2:]))
        assert came[3:] == [("a", 2, True)]
        assert len(turns) == 0

    asyncio.run(take_them())


def test_turn_ends_after_an_error() -> None:
    async def fail(turns: KeyedMutex[str]) -> None:
        async with turns.take("a", 0.0) as in_time:
            assert in_time
            raise ZeroDivisionError

    async def fail_again() -> None:
        turns: KeyedMutex[str] = KeyedMutex()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await fail(turns)
        assert len(turns) == 0

    asyncio.run(fail_again())
