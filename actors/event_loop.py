"""An event loop on a thread of its own: where sockets and their decisions live, inside actors and inside clients.

uvloop is used where it is installed. The loop's thread is a daemon: a process that just ends is not held up.

A SystemExit or KeyboardInterrupt that comes out of a task or callback is none of a background loop's business: asyncio
lets it end the loop, and the loop is run again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from raymq.actors.backoff import Backoff

_T = TypeVar("_T")

#: A loop that was ended from within is run again at once; one that fails again and again, after a wait up to this.
_LONGEST_PAUSE_SECONDS: Final = 1.0

#: What was handed over last may begin only while the loop ends, and has to be ended, too; not without end.
_MOST_ENDINGS: Final = 10

_log = logging.getLogger(__name__)


class _LastCalls:
    """What a loop does with blocking calls once the program is ending and has no helper threads any more.

    It makes them itself: what is sent last may still have a host name to look up, or an actor to call.
    """

    def run_in_executor(self: Any, executor: Any, call: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        try:
            return super().run_in_executor(executor, call, *arguments)  # type: ignore[misc, no-any-return]
        except RuntimeError:
            if self.is_closed():
                raise
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(call(*arguments))
        except Exception as error:  # noqa: BLE001 - it is the call's own
            done.set_exception(error)
        return done


class EventLoopThread:
    """Starts with construction; `stop()` cancels what runs and ends the thread. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.loop = _new_event_loop()
        self._stopping = False
        #: How often something within the loop raised what ends one, and it was run again.
        self.failures = 0
        self.last_failure: BaseException | None = None
        self.failed_at = 0.0
        self._pause = Backoff(first=0.001, cap=_LONGEST_PAUSE_SECONDS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        #: What `threading.get_ident` says on the loop; None before it runs.
        self.thread_id: int | None = None
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether coroutines can still be submitted."""
        return self._thread.is_alive() and not self.loop.is_closed()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's own."""
        return threading.get_ident() == self.thread_id

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop; the future resolves with its result."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine and wait for its result; cancelled if the caller is interrupted or `timeout` (s) is over."""
        if self.is_current:
            coroutine.close()
            raise RuntimeError("a blocking call on the event loop's own thread would wait for itself")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel all tasks and end the thread; at most `timeout` seconds."""
        if self.is_running:
            self._stopping = True
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.loop.stop)
            if not self.is_current:
                self._ended.wait(timeout)

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.thread_id = threading.get_ident()
        try:
            while self._run_until_stopped() and not (self._stopping or self.loop.is_closed()):
                pass
        finally:
            self._end()

    def _run_until_stopped(self) -> bool:
        """Run the loop; True if what ended it was raised within it, by somebody's task or callback."""
        began = time.monotonic()
        try:
            self.loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - it is for whoever raised it, and must not end the others' loop
            self.failures += 1
            self.last_failure = error
            self.failed_at = time.time()
            if self._stopping or self.loop.is_closed():
                return True
            _log.error("%s: the event loop was ended by %r and goes on", self._thread.name, error, exc_info=error)
            if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                self._pause.reset()
            time.sleep(self._pause.next_delay())
            return True
        return False

    def _end(self) -> None:
        try:
            for _ in range(_MOST_ENDINGS):
                tasks = asyncio.all_tasks(self.loop)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()
        finally:
            self._ended.set()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    kind: Any = asyncio.SelectorEventLoop
    with contextlib.suppress(ImportError):
        kind = importlib.import_module("uvloop").Loop
    loop: asyncio.AbstractEventLoop = type("Loop", (_LastCalls, kind), {})()
    return loop
