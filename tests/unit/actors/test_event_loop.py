"""The loop on a thread of its own: calls beside it, and the end of its program."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from raymq.actors.event_loop import EventLoopThread
from tests.polling import poll_until

PROGRAM = """
import asyncio, atexit, threading
from raymq.actors.event_loop import EventLoopThread

thread = EventLoopThread("test")

def last():
    print(thread.run(asyncio.to_thread(lambda: "called"), 10))
    print(len(thread.run(thread.loop.getaddrinfo("localhost", 80), 10)) > 0)
    try:
        thread.run(asyncio.to_thread(int, "x"), 10)
    except ValueError as error:
        print(error)
    thread.stop()

atexit.register(last)
"""


def test_blocking_calls_are_made_also_when_the_program_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["called", "True", "invalid literal for int() with base 10: 'x'"]


@pytest.fixture
def thread() -> Iterator[EventLoopThread]:
    made = EventLoopThread("test")
    yield made
    made.stop()
    poll_until(lambda: not [each for each in threading.enumerate() if each.name == "test"])
    assert made.loop.is_closed()


# -- what comes out of somebody's task or callback ------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_what_ends_a_loop_from_within_ends_only_its_task(thread: EventLoopThread, error: BaseException) -> None:
    async def ends() -> None:
        await asyncio.sleep(0)
        raise error

    async def waits() -> str:
        await asyncio.sleep(0.05)
        return "went on"

    others = thread.submit(waits())
    with pytest.raises(type(error)):
        thread.run(ends(), 10)
    assert others.result(10) == "went on"

    def callback() -> None:
        raise error

    for _ in range(3):
        thread.loop.call_soon_threadsafe(callback)
    poll_until(lambda: thread.failures == 4)
    assert thread.run(waits(), 10) == "went on"
    assert thread.last_failure is error


# -- threads that wait for a call -----------------------------------------------------------------------------------


class Interrupted(BaseException):
    """What a signal handler raises, anywhere."""


def test_an_interrupt_within_the_lock_of_a_result_does_not_stop_the_loop(
    thread: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Future's condition stayed locked for ever, and the loop with it, which wanted to tell the result."""
    caller = threading.get_ident()
    enter = threading.Condition.__enter__

    def interrupted(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.get_ident() == caller:
            raise Interrupted
        return entered

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", interrupted)
        with contextlib.suppress(Interrupted):
            thread.run(asyncio.sleep(0.05), 10)
    assert thread.run(asyncio.sleep(0, "goes on"), 10) == "goes on"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # interrupted before it was handed over
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_at_any_moment_leave_the_loop_to_others(thread: EventLoopThread) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    random_, ended, interrupts = random.Random(1), time.monotonic() + 1, 0
    try:
        while time.monotonic() < ended:
            try:
                signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-5, 3e-4))
                thread.run(asyncio.sleep(0), 10)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupts += 1
    finally:
        with contextlib.suppress(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 10
    assert thread.run(asyncio.sleep(0, "goes on"), 10) == "goes on"


def test_a_call_that_is_given_up_is_cancelled(thread: EventLoopThread) -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        thread.run(waits(), 0.05)
    assert cancelled.wait(10)
    with pytest.raises(TimeoutError):
        thread.run(waits(), -1.0)


@pytest.mark.parametrize("round_", range(40))
def test_who_waits_for_a_loop_that_ends_is_told(thread: EventLoopThread, round_: int) -> None:
    """What was handed over while the loop ended, and what had just been done: their callers waited for ever."""
    told: list[BaseException] = []
    calls = 0

    def wait() -> None:
        nonlocal calls
        try:
            while True:
                thread.run(asyncio.sleep(0))
                calls += 1
        except BaseException as error:  # noqa: BLE001 - whatever it is
            told.append(error)

    waiting = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for each in waiting:
        each.start()
    poll_until(lambda: calls > round_)
    thread.stop()
    for each in waiting:
        each.join(10)
    assert len(told) == 4
    assert all(isinstance(error, RuntimeError | CancelledError) for error in told)
