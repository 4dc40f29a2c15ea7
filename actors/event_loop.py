"""An event loop on a thread of its own: where sockets and their decisions live, inside actors and inside clients.

uvloop is used where it is installed. The loop's thread is a daemon: a process that just ends is not held up.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


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
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        #: What `threading.get_ident` says on the loop.
        self.thread_id = self._thread.ident

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
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.loop.stop)
            if not self.is_current:
                self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    kind: Any = asyncio.SelectorEventLoop
    with contextlib.suppress(ImportError):
        kind = importlib.import_module("uvloop").Loop
    loop: asyncio.AbstractEventLoop = type("Loop", (_LastCalls, kind), {})()
    return loop
