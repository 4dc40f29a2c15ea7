"""Write the queues' new entries into their files, in a thread.

No append then has to wait for the file system. A queue keeps its newest entries in memory; this thread writes them
behind those in the queue's file, and makes missing folders and files. That takes a tenth of a millisecond on a quiet
disk, and several milliseconds where the file system's journal is busy, which is why the store's writer does not do it.
Entries that a crash of the process loses are rebuilt from the log when the store is opened. A checkpoint writes all
entries before it records them as being on disk.

Nothing is lost when the disk is full or fails: the entries stay in memory and the write is tried again. Meanwhile
appends are refused with the disk's error.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict, deque
from typing import Final, Protocol

from raymq.storage.errors import StoreError
from raymq.storage.files.worker_thread import begin

#: The thread collects entries for this long, so that a busy queue's file is opened ten times a second only.
_PAUSE_SECONDS: Final = 0.1
#: Above this many unwritten bytes the store's writer waits until some are written.
_MAX_UNWRITTEN_BYTES: Final = 64 << 20
#: How many queues keep written entries in memory, for consumers that keep up.
_REMEMBERING: Final = 512
_log = logging.getLogger(__name__)


class PendingEntries(Protocol):
    """The end of a queue; methods are called with the `EntryWriter` lock held."""

    #: Whether the queue was passed to `add` and is not written yet.
    waiting: bool

    def write(self) -> int:
        """Write the entries that are not in the file yet; return their size in bytes.

        Raise StoreError if that fails.
        """

    def drop_written(self) -> None:
        """Drop all entries from memory that are in the file."""


class EntryWriter:
    """The entry writer of one store.

    `add`, `check_room` and `added` belong to the store's writer, the rest to any thread.
    """

    def __init__(self) -> None:
        #: Held while a queue's files are written, moved or closed.
        self.lock = threading.RLock()
        #: The total bytes of entries that were added to queues.
        self.added = 0
        self._written = 0
        self._failure: Exception | None = None
        self._waiting: deque[PendingEntries] = deque()
        self._remembering: OrderedDict[PendingEntries, None] = OrderedDict()
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymq-entries", daemon=True)

    def start(self) -> None:
        """Start the thread; queues added before are written then."""
        begin(self._thread)

    def add(self, queue: PendingEntries) -> None:
        """Register a queue whose entries are not in its file yet; does not block."""
        queue.waiting = True
        self._waiting.append(queue)
        self._work.set()

    def check_room(self) -> None:
        """Wait for the disk if too many entries are unwritten; otherwise return at once.

        Raises:
            StoreError: the last entries could not be written, and cannot be now.
        """
        while self._failure is not None or self.added - self._written > _MAX_UNWRITTEN_BYTES:
            if (queue := self._next()) is None:
                return
            try:
                self.write(queue)
            except (StoreError, OSError):
                raise
            except Exception as error:
                raise StoreError(f"the entries of a queue cannot be written: {error!r}") from error
            self._failure = None

    def _next(self) -> PendingEntries | None:
        with contextlib.suppress(IndexError):  # another thread has taken the last queue
            return self._waiting.popleft()
        return None

    def write(self, queue: PendingEntries) -> None:
        """Write the queue's entries from before the call.

        Raise StoreError if that fails; it will be tried again.
        """
        with self.lock:
            # Entries that are added after this line are either written below or add the queue again.
            queue.waiting = False
            try:
                self._written += queue.write()
            except BaseException:
                queue.waiting = True
                self._waiting.appendleft(queue)
                raise
            self._remembering[queue] = None
            self._remembering.move_to_end(queue)
            if len(self._remembering) > _REMEMBERING:
                self._remembering.popitem(last=False)[0].drop_written()

    def forget(self, queue: PendingEntries, unwritten: int) -> None:
        """Remove a closed queue with `unwritten` bytes of unwritten entries.

        Called with the lock held.
        """
        self._written += unwritten
        self._remembering.pop(queue, None)

    def stop(self) -> None:
        """Wait for the queue that is being written, and leave the rest.

        May be called again.
        """
        self._stopping.set()
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._work.wait()
            self._stopping.wait(_PAUSE_SECONDS)
            self._work.clear()
            try:
                for _ in range(len(self._waiting)):
                    if self._stopping.is_set():
                        return
                    if (queue := self._next()) is not None:
                        self.write(queue)
                self._failure = None
            except Exception as error:  # noqa: BLE001 - this thread must not end: it tries again, as on a full disk
                if self._failure is None and not isinstance(error, StoreError | OSError):
                    _log.exception("the entries of a queue cannot be written; the write is tried again", exc_info=error)
                self._failure = error
                self._work.set()
