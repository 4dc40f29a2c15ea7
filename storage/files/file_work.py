"""The thread that does ahead of a store's writer what may wait for the file system: blocks, pages, the next file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files.work_thread import WorkThread, begin

#: More than that is not worth doing any more when its turn comes.
_MOST_WAITING: Final = 1024


class Ahead(WorkThread):
    """Runs small pieces of work in order. What is dropped or fails the writer does, and meets the error."""

    def __init__(self) -> None:
        super().__init__("raymq-ahead")
        self._waiting: deque[Callable[[], None]] = deque(maxlen=_MOST_WAITING)

    def start(self) -> None:
        """Begin; what was asked for before waits until then."""
        begin(self._thread)

    def ask(self, work: Callable[[], None]) -> None:
        """Have it done soon; never waits."""
        self._waiting.append(work)
        self._work.set()

    def _do_work(self) -> None:
        while self._waiting and not self._stopping:
            try:
                self._waiting.popleft()()
            except (StoreError, OSError):
                continue
