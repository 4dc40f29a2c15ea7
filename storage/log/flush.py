"""The background threads that bring appended bytes to disk and write checkpoints.

It calls back into the store and knows nothing of files. A failing disk is not its business either: the commit log
remembers the failure and refuses what follows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files.work_thread import begin

_PAGE_BYTES: Final = 4096
_AT_MOST_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


class Flusher:
    """Two daemon threads: group commit every interval, a checkpoint every ten seconds.

    A checkpoint syncs every queue that was written to, and appended bytes do not wait for thousands of them.
    """

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
        self._interval_seconds = interval_ms / 1000
        self._least_bytes = max(1, least_pages * _PAGE_BYTES)
        self._stop = threading.Event()
        self._threads = (
            threading.Thread(target=self._keep_flushing, name="raymq-flush", daemon=True),
            threading.Thread(target=self._keep_checkpointing, name="raymq-checkpoint", daemon=True),
        )

    def start(self) -> None:
        """Begin; StoreBusy: the system has no threads to give."""
        for thread in self._threads:
            begin(thread)

    def stop(self) -> None:
        """Wait until the threads have ended; what is not flushed stays so. May be called again."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _keep_flushing(self) -> None:
        flushed_at = time.monotonic()
        while not self._stop.wait(self._interval_seconds):
            with _whatever_happens():
                waiting, now = self._unflushed_bytes(), time.monotonic()
                if waiting >= self._least_bytes or (waiting and now - flushed_at >= _AT_MOST_SECONDS):
                    self._flush()
                    flushed_at = now

    def _keep_checkpointing(self) -> None:
        while not self._stop.wait(max(self._interval_seconds, _AT_MOST_SECONDS)):
            with _whatever_happens():
                self._checkpoint()


@contextlib.contextmanager
def _whatever_happens() -> Iterator[None]:
    """Go on: the store remembers a failure and refuses appends; a checkpoint without room is merely older."""
    try:
        yield
    except (StoreError, OSError):
        pass
    except Exception:  # noqa: BLE001 - no memory, say: without this thread nothing would come to disk any more
        _log.exception("the log could not be brought to disk; it is tried again")
