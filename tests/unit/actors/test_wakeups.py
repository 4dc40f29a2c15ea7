"""Turns on the loop: in order, in slices, and whatever one of them does the others have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from raymq.actors.wire.loop_queue import LoopQueue, cancel_in_batches


def given(*calls: Callable[[LoopQueue, list[int]], None]) -> list[int]:
    """What turns did that were added together, and one that was added when they were over."""

    async def scenario() -> list[int]:
        turns, done = LoopQueue(), list[int]()
        for call in calls:
            turns.add(lambda call=call: call(turns, done))  # type: ignore[misc]
        ended = asyncio.Event()
        turns.add(ended.set)
        await asyncio.wait_for(ended.wait(), 5)
        ended.clear()
        turns.add(ended.set)
        await asyncio.wait_for(ended.wait(), 5)
        return done

    return asyncio.run(scenario())


def does(number: int) -> Callable[[LoopQueue, list[int]], None]:
    return lambda _, done: done.append(number)


def fails(_: LoopQueue, __: list[int]) -> None:
    raise MemoryError


def test_turns_are_given_in_order() -> None:
    assert given(*map(does, range(5))) == list(range(5))


@pytest.mark.parametrize("place", range(3))
def test_one_that_fails_ends_no_others(place: int) -> None:
    calls = [does(0), does(1)]
    calls.insert(place, fails)
    assert given(*calls) == [0, 1]


def test_one_that_is_added_in_a_turn_has_its_own() -> None:
    def adds(turns: LoopQueue, done: list[int]) -> None:
        turns.add(lambda: done.append(2))

    assert given(adds, does(1)) == [1, 2]


def test_a_turn_that_takes_long_lets_the_loop_do_its_other_work() -> None:
    async def scenario() -> list[str]:
        turns, done = LoopQueue(), list[str]()
        loop = asyncio.get_running_loop()
        for _ in range(2):
            until = loop.time()

            def long(until: float = until) -> None:
                while loop.time() < until + 0.01:
                    pass
                done.append("turn")

            turns.add(long)
        loop.call_soon(done.append, "other")
        ended = asyncio.Event()
        turns.add(ended.set)
        await asyncio.wait_for(ended.wait(), 5)
        return done

    assert asyncio.run(scenario())[:2] == ["turn", "other"]


async def test_very_many_tasks_are_cancelled_in_several_turns() -> None:
    """60,000 requests that were parked on a connection held the loop up when that was closed."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(asyncio.sleep(60)) for _ in range(2_000)]
    await asyncio.sleep(0)
    cancel_in_batches(loop, tasks)
    ended = []
    while not all(task.done() for task in tasks):
        ended.append(sum(task.done() for task in tasks))
        await asyncio.sleep(0)
    assert len(ended) >= 10
    assert all(task.cancelled() for task in tasks)
