"""Work under a supervisor goes on whatever it raises, is told of, and ends when somebody ends it."""

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
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)


async def until(so: Callable[[], bool]) -> None:
    """Let the loop turn until it is so; sleeping takes none of its time here."""
    for _ in range(10_000):
        if so():
            return
        await asyncio.sleep(0)
    raise AssertionError


def supervised(scenario: Callable[[Supervisor, Time], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        time = Time()
        await scenario(Supervisor("test", clock=time, sleep=time.sleep), time)

    asyncio.run(whole())


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_work_goes_on_after_what_nobody_expected(error: BaseException) -> None:
    async def scenario(supervisor: Supervisor, time: Time) -> None:
        begun: list[int] = []
        told: list[int] = []
        supervisor.on_failure(lambda: told.append(1))

        async def work() -> None:
            begun.append(1)
            if len(begun) <= 3:
                raise error

        await supervisor.keep("work", work)
        assert (len(begun), len(told), len(time.slept)) == (4, 3, 3)
        (failure,) = supervisor.failures
        assert (failure.work, failure.error, failure.count, failure.in_a_row) == ("work", repr(error), 3, 0)
        assert supervisor.works == []

    supervised(scenario)


def test_the_back_off_grows_to_its_cap_and_ends_with_calm() -> None:
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

    supervised(scenario)


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_a_duty_is_done_again_and_again(error: BaseException) -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        done: list[int] = []

        async def duty() -> None:
            done.append(1)
            if len(done) % 2:
                raise error
            if len(done) == 3 * PERSISTENT:
                raise RayMQError("expected")

        task = supervisor.every("duty", 1.0, duty)
        await until(lambda: len(done) >= 4 * PERSISTENT)
        assert supervisor.works == ["duty"]
        assert not any(failure.persists for failure in supervisor.failures), "each second time it succeeded"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    supervised(scenario)


def test_what_fails_again_and_again_persists() -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        async def work() -> None:
            raise ValueError("always")

        supervisor.keep("work", work)
        await until(lambda: any(failure.persists for failure in supervisor.failures))
        assert supervisor.failures[0].in_a_row == PERSISTENT
        supervisor.cancel()
        await until(lambda: not supervisor.works)

    supervised(scenario)


def test_cancelling_ends_it_while_it_works_and_while_it_waits() -> None:
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

    supervised(scenario)


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_work_that_is_done_once_is_reported_and_not_repeated(error: BaseException) -> None:
    async def scenario(supervisor: Supervisor, _: Time) -> None:
        async def fails() -> None:
            raise error

        await supervisor.once("duty", fails())
        assert [(failure.work, failure.error) for failure in supervisor.failures] == [("duty", repr(error))]

    supervised(scenario)
