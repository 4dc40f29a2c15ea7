"""The background thread that brings appended bytes to disk and writes checkpoints.

It calls back into the store and knows nothing of files. A failing disk is not its business either: the commit log
remembers the failure and refuses what follows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from raymq.storage.errors import StoreError

_PAGE_BYTES: Final = 4096
_AT_MOST_S: Final = 10.0


class Flusher:
    """A daemon thread: group commit every interval, a checkpoint every ten seconds."""

    def __init__(
        self,
        flush: Callable[[], None],
        checkpoint: Callable[[], None],
        unflushed_bytes: Callable[[], int],
        interval_ms: int,
        least_pages: int,
    ) -> None:
        self._flush = flush
        self._checkpoint = checkpoint
        self._unflushed_bytes = unflushed_bytes
        self._interval_s = interval_ms / 1000
        self._least_bytes = max(1, least_pages * _PAGE_BYTES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymq-flush", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Wait until the thread has ended; what is not flushed stays so. May be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        flushed_at = checked_at = time.monotonic()
        while not self._stop.wait(self._interval_s):
            now = time.monotonic()
            try:
                waiting = self._unflushed_bytes()
                if waiting >= self._least_bytes or (waiting and now - flushed_at >= _AT_MOST_S):
                    self._flush()
                    flushed_at = now
                if now - checked_at >= _AT_MOST_S:
                    self._checkpoint()
                    checked_at = now
            except (StoreError, OSError):
                # The store remembers a failure and refuses appends; a checkpoint without room is merely older.
                checked_at = now
