"""Test the periodic tasks of a broker, which share one timer of its loop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from raymq.actors.broker.periodic_tasks import PeriodicTasks, run_periodically


async def test_tasks_run_with_their_own_periods() -> None:
    done: dict[str, int] = {"often": 0, "rarely": 0}
    enough = asyncio.Event()

    def often() -> None:
        done["often"] += 1
        if done["often"] == 9:
            enough.set()

    def rarely() -> None:
        done["rarely"] += 1

    duties = PeriodicTasks(asyncio.get_running_loop(), 0.005)
    duties.add("often", 0.005, often)
    duties.add("rarely", 3_600.0, rarely)
    duties.begin()
    assert done == {"often": 1, "rarely": 1}, "the first turn comes at once"
    async with asyncio.timeout(5):
        await enough.wait()
    duties.cancel()
    assert done["rarely"] == 1


async def test_failing_task_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    left, done = 3, asyncio.Event()

    def fails() -> None:
        raise ValueError("whatever")

    def goes_on() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    duties = PeriodicTasks(asyncio.get_running_loop(), 0.001)
    duties.add("broker-a: fails", 0.001, fails)
    duties.add("broker-a: goes on", 0.001, goes_on)
    with caplog.at_level(logging.ERROR):
        duties.begin()
        async with asyncio.timeout(5):
            await done.wait()
    duties.cancel()
    assert "broker-a: fails failed: whatever" in caplog.text


async def test_task_may_return_its_next_delay() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    enough = asyncio.Event()

    async def duty() -> float | None:
        times.append(loop.time())
        if len(times) == 3:
            enough.set()
        return 0.05 if len(times) == 1 else None

    task = loop.create_task(run_periodically("duty", 0.001, duty))
    async with asyncio.timeout(5):
        await enough.wait()
    task.cancel()
    assert times[1] - times[0] >= 0.045
