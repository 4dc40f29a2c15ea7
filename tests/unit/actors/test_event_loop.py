"""Test the event loop thread: calls beside the loop, waiting threads, and program exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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


def test_blocking_calls_work_at_program_exit() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["called", "True", "invalid literal for int() with base 10: 'x'"]


# -- calls beside the loop -----------------------------------------------------------------------------------------


@pytest.fixture
def thread() -> Iterator[EventLoopThread]:
    made = EventLoopThread("test")
    yield made
    made.stop()
    poll_until(lambda: not [each for each in threading.enumerate() if each.name in ("test", "raymq-standby")])
    assert made.loop.is_closed()


def begin(thread: EventLoopThread, call: Callable[[], None]) -> None:
    """Run the call as soon as a standby thread exists."""

    async def once() -> bool:
        return thread.run_on_loop_thread(call)

    poll_until(lambda: thread.run(once(), 10))


async def name() -> str:
    return threading.current_thread().name


def test_call_runs_on_loop_thread_outside_loop(thread: EventLoopThread) -> None:
    seen: list[object] = []
    made = threading.Event()

    def call() -> None:
        seen.extend((threading.current_thread().name, thread.is_current, asyncio._get_running_loop()))
        seen.append(asyncio.run(name()))  # a loop of its own
        made.set()

    for _ in range(3):
        begin(thread, call)
        assert made.wait(10)
        made.clear()
    assert seen[:4] == ["test", False, None, "test"]
    assert thread.run(name(), 10) in ("test", "raymq-standby")


def test_long_call_does_not_block_loop(thread: EventLoopThread) -> None:
    for loops, calls in (("raymq-standby", "test"), ("test", "raymq-standby")):
        began, go_on, made = threading.Event(), threading.Event(), threading.Event()
        by: list[str] = []

        def call(began=began, go_on=go_on, made=made, by=by) -> None:  # type: ignore[no-untyped-def]
            by.append(threading.current_thread().name)
            began.set()
            assert thread.run(name(), 10) != by[0], "it may ask the loop for something, and wait for it"
            assert go_on.wait(10)
            made.set()

        begin(thread, call)
        assert began.wait(10)
        assert thread.run(name(), 10) == loops
        assert by == [calls]

        async def another() -> bool:
            return thread.run_on_loop_thread(lambda: None)

        assert not thread.run(another(), 10), "nobody would stand by"
        go_on.set()
        assert made.wait(10)


def test_error_of_call_is_logged(thread: EventLoopThread, caplog: pytest.LogCaptureFixture) -> None:
    def call() -> None:
        raise ValueError("its own")

    with caplog.at_level(logging.ERROR):
        begin(thread, call)
        assert thread.run(name(), 10)
    assert "its own" in caplog.text


def test_stop_does_not_wait_for_call(thread: EventLoopThread) -> None:
    began, go_on = threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        assert go_on.wait(10)

    begin(thread, call)
    assert began.wait(10)
    thread.stop(10)
    assert thread.loop.is_closed()
    assert not thread.is_running
    go_on.set()


def test_call_may_stop_loop(thread: EventLoopThread) -> None:
    made = threading.Event()

    def call() -> None:
        thread.stop(10)
        made.set()

    begin(thread, call)
    assert made.wait(10)
    assert thread.loop.is_closed()


def test_many_calls_alternate_with_loop(thread: EventLoopThread) -> None:
    begin(thread, lambda: None)
    made: list[int] = []

    async def one(number: int) -> bool:
        return thread.run_on_loop_thread(lambda: made.append(number))

    taken = [number for number in range(3_000) if thread.run(one(number), 10)]
    assert thread.run(name(), 10)
    assert made == taken


# -- errors of tasks and callbacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_exit_error_ends_only_its_task(thread: EventLoopThread, error: BaseException) -> None:
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
    """Stand for an exception that a signal handler raises anywhere."""


def test_interrupt_inside_future_lock_does_not_stop_loop(
    thread: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard against a Future's condition that stays locked, and blocks the loop forever."""
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
def test_signals_at_random_moments_do_not_stop_loop(thread: EventLoopThread) -> None:
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


def test_timed_out_call_is_cancelled(thread: EventLoopThread) -> None:
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
def test_stopping_loop_raises_in_waiting_threads(thread: EventLoopThread, round_: int) -> None:
    """Guard against callers that wait forever while the loop stops.

    Their work had been handed over meanwhile, or had just been done.
    """
    errors: list[BaseException] = []
    calls = 0

    def wait() -> None:
        nonlocal calls
        try:
            while True:
                thread.run(asyncio.sleep(0))
                calls += 1
        except BaseException as error:  # noqa: BLE001 - any error counts
            errors.append(error)

    waiting = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for each in waiting:
        each.start()
    poll_until(lambda: calls > round_)
    thread.stop()
    for each in waiting:
        each.join(10)
    assert len(errors) == 4
    assert all(isinstance(error, RuntimeError | CancelledError) for error in errors)


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_loop_survives_errors_of_calls(thread: EventLoopThread, error: BaseException) -> None:
    def call() -> None:
        raise error

    async def answer() -> int:
        return 7

    for _ in range(3):
        begin(thread, call)
    assert thread.run(answer(), 10) == 7
