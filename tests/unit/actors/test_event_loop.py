"""The loop on a thread of its own: calls beside it, and the end of its program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

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
