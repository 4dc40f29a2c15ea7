"""An event loop with virtual time, which moves only while all tasks wait: hours of a client's life in seconds.

Sockets are real. The loop polls them first; without events it does not wait for the next timer, but moves its time to
it. `time.monotonic`, `time.clock_gettime`, `time.time` and `time.time_ns` follow it within `virtual_time`.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: How long, in real seconds, the loop waits for sockets and helper threads before time moves.
_GRACE_SECONDS = 0.0002
#: The step of virtual time. Timers of one step fire together: late by at most a step, as on a busy machine.
STEP_SECONDS = 0.1


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        until = time.perf_counter() + _GRACE_SECONDS  # epoll's own timeout is at least a millisecond
        while time.perf_counter() < until:
            found = super().select(0)
            if found:
                return found
        if timeout is None or self.loop.helpers():
            return super().select(0.01)
        self.loop.now = math.ceil((self.loop.now + timeout) / STEP_SECONDS) * STEP_SECONDS
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop with its time `now` in seconds; `advance` lets time pass, as a busy thread would."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = time.monotonic()
        self._helped = 0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def helpers(self) -> int:
        """Return the number of blocking calls on helper threads, which run in real time."""
        return self._helped

    def run_in_executor(self, executor: Any, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, call, *arguments)
        self._helped += 1

        def helped(_: object) -> None:
            self._helped -= 1

        future.add_done_callback(helped)
        return future


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """Yield the loop on the calling thread, with the clocks that follow it."""
    loop = VirtualLoop()
    began, wall = loop.now, time.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: loop.now)
        patch.setattr(time, "clock_gettime", lambda _: loop.now)
        patch.setattr(time, "time", lambda: wall + loop.now - began)
        patch.setattr(time, "time_ns", lambda: int((wall + loop.now - began) * 1e9))
        asyncio.set_event_loop(loop)
        try:
            yield loop
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            asyncio.set_event_loop(None)
            loop.close()


class CurrentThreadLoop:
    """Replace a `Connection`'s loop thread by the running thread."""

    failures = 0
    is_running = False

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.thread_id = threading.get_ident()

    def run_on_loop_thread(self, _: Callable[[], None]) -> bool:
        return False


class SequentialCalls:
    """Replace `ListenerThreads`: calls run on the loop one after another, and take virtual time."""

    def __init__(
        self,
        most: int,
        name: str,
        run: Callable[[Any], None],
        failed: Callable[[BaseException], object],
        lacking: Callable[[RuntimeError], object],
    ) -> None:
        self._run = run
        self._failed = failed
        self._calls: deque[Any] = deque()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def submit(self, call: Any) -> None:
        if not self._closed:
            self._calls.append(call)
            self._loop.call_soon(self._work)

    def start_pending(self) -> bool:
        return True

    def withdraw(self) -> list[Any]:
        left = list(self._calls)
        self._calls.clear()
        return left

    def close(self) -> list[Any]:
        self._closed = True
        return self.withdraw()

    def _work(self) -> None:
        if self._calls:
            try:
                self._run(self._calls.popleft())
            except BaseException as error:  # noqa: BLE001 - as the threads do
                self._failed(error)
