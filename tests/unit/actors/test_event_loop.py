"""The loop on a thread of its own, at the end of its program."""

from __future__ import annotations

import subprocess
import sys

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
