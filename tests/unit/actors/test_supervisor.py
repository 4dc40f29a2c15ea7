"""Test that supervised work continues after any exception, is reported, and can be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raymq.actors.errors import RayMQError
from raymq.actors.supervisor import CALM_SECONDS, LONGEST_SECONDS, PERSISTENT, Supervisor

UNEXPECTED = [
    ValueError("no"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    RecursionError(),
]


class Time:
    """Provide a clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds; sleeping takes no time here."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError


def run_scenario(scenario: Callable[[Supervisor, Time], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        time = Time()
        await scenario(Supervisor("test", clock=time, sleep=time.sleep), time)

    asyncio.run(whole())


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_work_continues_after_any_exception(error: BaseException) -> None:
    async def scenario(supervisor: Supervisor, time: Time) -> None:
        begun: list[int] = []
        notifications: list[int] = []
        supervisor.on_failure(lambda: notifications.append(1))

        async def work() -> None:
            begun.append(1)
            if len(begun) <= 3:
                raise error

        await supervisor.keep("work", work)
        assert (len(begun), len(notifications), len(time.slept)) == (4, 3, 3)
        (failure,) = supervisor.failures
        assert (failure.work, failure.error, failure.count, failure.in_a_row) == ("work", repr(error), 3, 0)
        assert supervisor.works == []

    run_scenario(scenario)


def test_backoff_grows_to_cap_and_resets_after_calm() -> None:
    async def scenario(supervisor: Supervisor, time: Time) -> None:
        lasts = [0.0] * 2_000 + [CALM_SECONDS, 0.0]

        async def work() -> None:
            if lasts:
                time.now += lasts.pop(0)
                raise ValueError

        await supervisor.keep("work", work)
        assert max(time.slept) <= LONGEST_SECONDS
        assert min(time.slept[50:2_000]) > LONGEST_SECONDS / 2
        assert time.slept[2_000] < 1.0

    run_scenario(scenario)


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_periodic_work_continues_after_failures(error: BaseException) -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        done: list[int] = []

        async def duty() -> None:
            done.append(1)
            if len(done) % 2:
                raise error
            if len(done) == 3 * PERSISTENT:
                raise RayMQError("expected")

        task = supervisor.every("duty", 1.0, duty)
        await wait_until(lambda: len(done) >= 4 * PERSISTENT)
        assert supervisor.works == ["duty"]
        assert not any(failure.persists for failure in supervisor.failures), "each second time it succeeded"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_scenario(scenario)


def test_repeated_failure_is_persistent() -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        async def work() -> None:
            raise ValueError("always")

        supervisor.keep("work", work)
        await wait_until(lambda: any(failure.persists for failure in supervisor.failures))
        assert supervisor.failures[0].in_a_row == PERSISTENT
        supervisor.cancel()
        await wait_until(lambda: not supervisor.works)

    run_scenario(scenario)


def test_cancel_ends_running_work() -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = supervisor.keep("work", forever)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert supervisor.failures == []

    run_scenario(scenario)


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_failure_of_one_time_work_is_reported(error: BaseException) -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        async def fails() -> None:
            raise error

        await supervisor.once("duty", fails())
        assert [(failure.work, failure.error) for failure in supervisor.failures] == [("duty", repr(error))]

    run_scenario(scenario)
