"""The thread that runs users' callbacks: what they do, also a blocking send, holds up no event loop.

A callback of a `concurrent.futures.Future` runs on the thread that settles it. Of sends in the background that is the
connection's event loop, which must not wait for anything, and which all clients of the connection share.
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


class Callbacks:
    """One connection's. Its thread begins with the first callback. Thread-safe."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # Its thread ends with it, if nobody closes it: when nobody has it, no future that is to be settled either.
        weakref.finalize(self, self._calls.put, None).atexit = False
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def run(self, callback: Callable[[Future[Any]], object], future: Future[Any]) -> None:
        """Call `callback(future)` on the thread, after what was asked for before."""
        self._calls.put((callback, future))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._begin()

    def close(self, timeout: float) -> None:
        """Run what was asked for, for at most `timeout` seconds, and end the thread; without one, on the caller's."""
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
        except RuntimeError as error:  # as the program ends: what waits is run by `close`, or behind the next one
            _log.debug("callbacks of sends have to wait: %s", error)
        else:
            self._thread = thread


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        callback, future = call
        try:
            callback(future)
        except BaseException:  # noqa: BLE001 - one callback's fault must not keep the others from running
            _log.exception("a callback of a send failed")
        del call, callback, future  # while it waits for the next one it keeps nothing alive


class CallbackFuture(Future[_T]):
    """A future that cannot be cancelled, and whose callbacks run on a thread of their own."""

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[Future[_T]], object]) -> None:
        """Call `fn` with this future once it is settled, on the connection's thread for that."""
        super().add_done_callback(partial(self._callbacks.run, fn))
