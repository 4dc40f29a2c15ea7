"""Sync appended bytes to disk and write checkpoints, in background threads.

The threads call back into the store and do not access files themselves. The commit log handles a failing disk: it
remembers the failure and refuses later writes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files.worker_thread import begin

_PAGE_BYTES: Final = 4096
_AT_MOST_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


class Flusher:
    """Sync the log every interval, and write a checkpoint every ten seconds.

    A checkpoint syncs every queue that was written to; its own thread keeps the group commit from waiting for thousands
    of queues.
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
        """Start the threads; raise StoreBusy if the system cannot provide them."""
        for thread in self._threads:
            begin(thread)

    def stop(self) -> None:
        """Wait until the threads have ended, without flushing the rest; may be called again."""
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
    """Suppress errors so that the thread goes on.

    The store remembers a failure of the disk and refuses appends; a checkpoint that finds no room only leaves the old
    one in place.
    """
    try:
        yield
    except (StoreError, OSError):
        pass
    except Exception:  # noqa: BLE001 - for example no memory: without this thread the log is not flushed any more
        _log.exception("the log could not be flushed; the flush is tried again")
