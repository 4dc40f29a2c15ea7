"""Test the loop queue: calls run in order, in slices, and independently of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from raymq.actors.wire.loop_queue import LoopQueue, cancel_in_batches


def run_calls(*calls: Callable[[LoopQueue, list[int]], None]) -> list[int]:
    """Add the calls together, and one more after them; return what they did."""

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


def append_number(number: int) -> Callable[[LoopQueue, list[int]], None]:
    return lambda _, done: done.append(number)


def raise_memory_error(_: LoopQueue, __: list[int]) -> None:
    raise MemoryError


def test_calls_run_in_order() -> None:
    assert run_calls(*map(append_number, range(5))) == list(range(5))


@pytest.mark.parametrize("place", range(3))
def test_failing_call_does_not_stop_others(place: int) -> None:
    calls = [append_number(0), append_number(1)]
    calls.insert(place, raise_memory_error)
    assert run_calls(*calls) == [0, 1]


def test_call_added_by_a_call_runs_later() -> None:
    def adds(turns: LoopQueue, done: list[int]) -> None:
        turns.add(lambda: done.append(2))

    assert run_calls(adds, append_number(1)) == [1, 2]


def test_long_call_yields_to_other_work_of_loop() -> None:
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


async def test_many_tasks_are_cancelled_over_several_turns() -> None:
    """Guard against a loop stop when a connection with 60,000 parked requests closes."""
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
