"""The thread that brings the queues' new entries into their files, so that no append waits for the file system.

A queue keeps its newest entries in memory; this thread writes them behind those that are in its file, and makes folder
and file where there are none yet. That costs a tenth of a millisecond on a quiet disk and several where the file
system's journal is busy, which is why the store's writer does not do it. Entries that the death of the process takes
are made anew from the log when the store is opened, and a checkpoint writes all of them before it says that they are
on disk.

Nothing is lost when the disk is full or fails: the entries stay in memory and it is tried again, and meanwhile
appends are refused with what the disk says.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict, deque
from typing import Final, Protocol

from raymq.storage.errors import StoreError
from raymq.storage.files.work_thread import begin

#: Entries of so long are written together: a queue that is busy is opened ten times a second and not for each message.
_PAUSE_SECONDS: Final = 0.1
#: Above this much that is not written the store's writer waits until some is.
_MOST_UNWRITTEN_BYTES: Final = 64 << 20
#: How many queues keep entries in memory that are in the file already; who keeps up reads these.
_REMEMBERING: Final = 512
_log = logging.getLogger(__name__)


class Entries(Protocol):
    """The end of a queue, as this thread needs it. Both are called with the writer's lock held."""

    #: Whether it was handed to `add` and is not written yet.
    waiting: bool

    def write(self) -> int:
        """Write what is not in the file yet; how many bytes these were. StoreError: not done."""

    def forget_written(self) -> None:
        """Keep nothing in memory that is in the file."""


class EntryWriter:
    """One store's. `add`, `check_room` and `added` belong to the store's writer, the rest to any thread."""

    def __init__(self) -> None:
        #: Held while a queue's files are written, moved or closed.
        self.lock = threading.RLock()
        #: How many bytes of entries queues have taken, ever.
        self.added = 0
        self._written = 0
        self._failure: Exception | None = None
        self._waiting: deque[Entries] = deque()
        self._remembering: OrderedDict[Entries, None] = OrderedDict()
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymq-entries", daemon=True)

    def start(self) -> None:
        """Begin; what was handed over before waits until then."""
        begin(self._thread)

    def add(self, queue: Entries) -> None:
        """The queue has entries that are not in its file. Never waits."""
        queue.waiting = True
        self._waiting.append(queue)
        self._work.set()

    def check_room(self) -> None:
        """Return at once if entries may come; wait for the disk where too many are not written.

        Raises:
            StoreError: the last ones could not be written, and cannot be now.
        """
        while self._failure is not None or self.added - self._written > _MOST_UNWRITTEN_BYTES:
            if (queue := self._next()) is None:
                return
            try:
                self.write(queue)
            except (StoreError, OSError):
                raise
            except Exception as error:
                raise StoreError(f"the entries of a queue cannot be written: {error!r}") from error
            self._failure = None

    def _next(self) -> Entries | None:
        with contextlib.suppress(IndexError):  # another thread has written what waited
            return self._waiting.popleft()
        return None

    def write(self, queue: Entries) -> None:
        """Write the queue's entries of before the call. StoreError: not done, it will be tried again."""
        with self.lock:
            # Entries that come from here on either are seen below, or hand the queue over again.
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
                self._remembering.popitem(last=False)[0].forget_written()

    def forget(self, queue: Entries, unwritten: int) -> None:
        """The queue is gone, and with it so many bytes that were not written. Called with the lock held."""
        self._written += unwritten
        self._remembering.pop(queue, None)

    def stop(self) -> None:
        """Wait for the queue that is being written, and leave the rest. May be called again."""
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
            except Exception as error:  # noqa: BLE001 - this thread must not end: it is tried again, as on a full disk
                if self._failure is None and not isinstance(error, StoreError | OSError):
                    _log.exception("the entries of a queue cannot be written; it is tried again", exc_info=error)
                self._failure = error
                self._work.set()
