"""Run users' callbacks on a separate thread, so that none blocks the event loop.

A callback of a `concurrent.futures.Future` runs on the thread that settles the future. For background sends this is the
connection's event loop, which must never block, and which all clients of the connection share. A callback may block,
for example in a send.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Call = tuple[Callable[[Future[Any]], object], Future[Any]]

_log = logging.getLogger(__name__)


class CallbackExecutor:
    """The callback thread of one connection, started for the first callback. Thread-safe."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # Ends the thread if the executor is garbage-collected without `close`: no future with callbacks is left then.
        weakref.finalize(self, self._calls.put, None).atexit = False
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def run(self, callback: Callable[[Future[Any]], object], future: Future[Any]) -> None:
        """Call `callback(future)` on the thread, after the callbacks that were added before."""
        self._calls.put((callback, future))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._begin()

    def close(self, timeout: float) -> None:
        """Run the remaining callbacks and end the thread.

        Wait for it for at most `timeout` seconds. If no thread was started, the callbacks run on the caller's thread.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        self._calls.put(None)
        if thread is None:
            _work(self._calls)
        elif thread is not threading.current_thread():
            thread.join(timeout)

    def _begin(self) -> None:
        thread = threading.Thread(target=_work, args=(self._calls,), name="raymq-callbacks", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # at interpreter exit: `close` or the next start of the thread runs the waiting callbacks
            _log.debug("callbacks of sends are delayed: %s", error)
        else:
            self._thread = thread


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        callback, future = call
        try:
            callback(future)
        except BaseException:  # noqa: BLE001 - an error of one callback must not stop the others
            _log.exception("a callback of a send failed")
        del call, callback, future  # keep no reference while it waits for the next callback


class CallbackFuture(Future[_T]):
    """A future that cannot be cancelled, and whose callbacks run on the callback thread."""

    def __init__(self, callbacks: CallbackExecutor) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Call `fn` with this future once it is settled, on the connection's callback thread."""
        super().add_done_callback(partial(self._callbacks.run, fn))
