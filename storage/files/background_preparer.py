"""Prepare blocks, pages and the next file ahead of a store's writer, in a thread.

These steps may wait for the file system.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files.worker_thread import WorkerThread, begin

#: Above this many waiting pieces the oldest are dropped, because they would be done too late to help.
_MAX_WAITING: Final = 1024


class BackgroundPreparer(WorkerThread):
    """A thread that runs small pieces of work in order.

    If a piece is dropped or fails, the writer does it itself and gets the error.
    """

    def __init__(self) -> None:
        super().__init__("raymq-ahead")
        self._waiting: deque[Callable[[], None]] = deque(maxlen=_MAX_WAITING)

    def start(self) -> None:
        """Start the thread; pieces submitted before are run then."""
        begin(self._thread)

    def submit(self, work: Callable[[], None]) -> None:
        """Queue a piece of work; does not block."""
        self._waiting.append(work)
        self._work.set()

    def _do_work(self) -> None:
        while self._waiting and not self._stopping:
            try:
                self._waiting.popleft()()
            except (StoreError, OSError):
                continue
