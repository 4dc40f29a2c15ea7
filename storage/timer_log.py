"""Which messages wait for a time of their own: entries of fixed width, in one file for each hour in which they are due.

Derived data: the messages lie in the log, and every entry can be made again from there. Files are only appended to: one
entry says that a message waits, a later one with the same queue offset that it does so no more. A file goes when its
hour is over and nothing in it waits.

Entry, big endian: due time in ms i8 | offset in the timer queue i8 | physical offset i8 | key i8 | size i4 | kind i4.
The physical offset is that of what the entry tells of: the waiting message, also one that cannot be delivered; or the
copy that was delivered, or the message that withdrew it. So an entry goes with what the log has lost. The state beside
the files says up to where they hold what the log has; all before it is on disk.
"""

from __future__ import annotations

import contextlib
import enum
import json
import threading
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage import fileutil
from raymq.storage.errors import StoreCorrupt, StoreError

HOUR_MS: Final = 3_600_000
ENTRY: Final = np.dtype(
    [
        ("due_ms", ">i8"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("key", ">i8"),
        ("size", ">i4"),
        ("kind", ">i4"),
    ]
)
#: Entries that are in memory at a time while a file is gone through.
_CHUNK_ENTRIES: Final = 1 << 18

Entries = npt.NDArray[np.void]


class Kind(enum.IntEnum):
    """What an entry says of a message."""

    WAITS = 1
    DELIVERED = 2
    WITHDRAWN = 3
    #: It waits on as a newer record, under another queue offset.
    MOVED = 4
    #: It cannot be delivered: its topic is gone, or its record is damaged.
    DROPPED = 5


NO_ENTRIES: Final = np.empty(0, ENTRY)


def key_of(delete_key: str) -> int:
    """A number of 64 bits for "<topic>_<unique key>", by which a waiting message is found."""
    return int.from_bytes(blake2b(delete_key.encode(), digest_size=8).digest(), "big", signed=True)


class TimerLog:
    """The files of one store. Belongs to the store's writer; what `checkpoint` returns to any thread.

    Attributes:
        enqueued: the timer queue is in the files up to this offset.
        log_end: entries are there for all that was delivered from them before this place of the log.
    """

    def __init__(self, folder: Path, *, log_end: int, clean: bool) -> None:
        """Open the files.

        Args:
            log_end: where the log ends.
            clean: False after a crash: entries of records that the log has lost are dropped then.

        Raises:
            StoreCorrupt: the state cannot be read. StoreFull, StoreFailed.
        """
        self._folder = folder
        self._state_path = folder / "state.json"
        fileutil.make_folder(folder)
        self.enqueued, self.log_end = self._load_state()
        self._saved = (self.enqueued, self.log_end)
        self.log_end = min(self.log_end, log_end)
        self._lengths = {int(path.name): path.stat().st_size for path in folder.iterdir() if path.name.isdecimal()}
        #: Hours that were written to since the last checkpoint, and those of it and before that are not on disk yet.
        self._dirty: set[int] = set()
        self._unsynced: set[int] = set()
        self._writing = threading.Lock()
        for hour in list(self._lengths):
            self._mend(hour, None if clean else log_end)

    @property
    def hours(self) -> list[int]:
        """The hours (since the epoch) that have entries, ascending."""
        return sorted(self._lengths)

    def append(self, entries: Entries) -> None:
        """Write entries; they survive the process. StoreFull, StoreFailed: of some hours they may be there."""
        stored = entries.astype(ENTRY)  # NumPy turns what it joins into this machine's byte order
        hours = stored["due_ms"] // HOUR_MS
        for hour in np.unique(hours).tolist():
            self._write(hour, stored[hours == hour].tobytes())

    def waiting(self, hour: int, before_ms: int | None = None) -> Entries:
        """What waits of an hour (due before `before_ms`), by due time and queue offset."""
        waits, ended = [NO_ENTRIES], [np.empty(0, np.int64)]
        for chunk in self._chunks(hour):
            part = chunk if before_ms is None else chunk[chunk["due_ms"] < before_ms]
            is_waiting = part["kind"] == Kind.WAITS
            waits.append(part[is_waiting])
            ended.append(part["queue_offset"][~is_waiting].astype(np.int64))
        found = np.concatenate(waits)
        offsets, firsts = np.unique(found["queue_offset"].astype(np.int64), return_index=True)
        found = found[firsts[~np.isin(offsets, np.concatenate(ended))]]
        return found[np.lexsort((found["queue_offset"], found["due_ms"]))]

    def find(self, due_ms: int, key: int) -> Entries:
        """All that is told of messages of that key that are due then, in the order it was told."""
        chunks = self._chunks(due_ms // HOUR_MS)
        return np.concatenate([NO_ENTRIES, *(c[(c["due_ms"] == due_ms) & (c["key"] == key)] for c in chunks)])

    def last_place(self, hour: int) -> int:
        """The highest physical offset in an hour's entries, -1 without."""
        return max((int(chunk["physical_offset"].max()) for chunk in self._chunks(hour)), default=-1)

    def delete(self, hour: int) -> None:
        """Forget an hour of which nothing waits."""
        fileutil.remove(self._path(hour))
        del self._lengths[hour]
        self._dirty.discard(hour)
        self._unsynced.discard(hour)

    def checkpoint(self, log_end: int) -> Callable[[], None] | None:
        """What brings all entries so far to disk and says so in the state; None if there is nothing new.

        Args:
            log_end: the log's end at this moment.

        What is returned may be called on another thread; StoreFull, StoreFailed: the last state holds. If it is not
        called, the next one does its part.
        """
        self.log_end = log_end
        state = self.enqueued, log_end
        if state == self._saved:
            return None
        self._unsynced |= self._dirty
        self._dirty.clear()
        hours = frozenset(self._unsynced)

        def write() -> None:
            with self._writing:
                for hour in hours:
                    self._sync(hour)
                fileutil.sync_directory(self._folder)
                content = json.dumps({"enqueued": state[0], "logEnd": state[1]}).encode()
                fileutil.replace(self._state_path, content)
                self._unsynced -= hours
                self._saved = state

        return write

    def _load_state(self) -> tuple[int, int]:
        try:
            state = json.loads(self._state_path.read_bytes())
            return int(state["enqueued"]), int(state["logEnd"])
        except FileNotFoundError:
            return 0, 0
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(str(self._state_path), 0, f"no state of timers: {error}") from None

    def _mend(self, hour: int, log_end: int | None) -> None:
        """Cut off half an entry, and drop what tells of records at or behind `log_end`."""
        length = self._lengths[hour]
        whole = length - length % ENTRY.itemsize
        if whole < length:
            with self._open(hour) as fd:
                fileutil.truncate(fd, whole, self._path(hour))
            self._lengths[hour] = whole
        if log_end is not None and self.last_place(hour) >= log_end:
            kept = np.concatenate([chunk[chunk["physical_offset"] < log_end] for chunk in self._chunks(hour)])
            fileutil.replace(self._path(hour), kept.astype(ENTRY).tobytes())
            self._lengths[hour] = kept.nbytes

    def _write(self, hour: int, content: bytes) -> None:
        length = self._lengths.get(hour, 0)
        with self._open(hour) as fd:
            self._lengths[hour] = length
            self._dirty.add(hour)
            try:
                fileutil.write_all(fd, content, self._path(hour))
            except StoreError:  # no half entry may stand before the next one
                fileutil.truncate(fd, length, self._path(hour))
                raise
        self._lengths[hour] = length + len(content)

    def _chunks(self, hour: int) -> Iterator[Entries]:
        if hour not in self._lengths:
            return
        with self._path(hour).open("rb") as stream:
            while len(chunk := np.fromfile(stream, ENTRY, _CHUNK_ENTRIES)):
                yield chunk

    def _sync(self, hour: int) -> None:
        with contextlib.suppress(FileNotFoundError), self._path(hour).open("rb") as stream:
            fileutil.fdatasync(stream.fileno(), self._path(hour))

    @contextlib.contextmanager
    def _open(self, hour: int) -> Iterator[int]:
        fd = fileutil.open_for_append(self._path(hour))
        try:
            yield fd
        finally:
            fileutil.close(fd)

    def _path(self, hour: int) -> Path:
        return self._folder / f"{hour:08d}"
