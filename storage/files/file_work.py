"""The thread that does ahead of a store's writer what may wait for the file system: blocks, pages, the next file."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from raymq.storage.errors import StoreError

#: More than that is not worth doing any more when its turn comes.
_MOST_WAITING: Final = 1024


class Ahead:
    """Runs small pieces of work in order. What is dropped or fails the writer does, and meets the error."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque(maxlen=_MOST_WAITING)
        self._work = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="raymq-ahead", daemon=True)

    def start(self) -> None:
        """Begin; what was asked for before waits until then."""
        self._thread.start()

    def ask(self, work: Callable[[], None]) -> None:
        """Have it done soon; never waits."""
        self._waiting.append(work)
        self._work.set()

    def stop(self) -> None:
        """Wait for the piece that is being done and drop the rest. May be called again."""
        self._stopping = True
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait()
            self._work.clear()
            while self._waiting and not self._stopping:
                try:
                    self._waiting.popleft()()
                except (StoreError, OSError):
                    continue
