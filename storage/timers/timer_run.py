"""Runs of the timer log: immutable files of entries, sorted by due time and key.

```
entries, 40 B each, by (due time, key) | offsets in the timer queue of those that wait no more, i8 each, ascending
```

The state of the timer log has the numbers of both. Sorting makes a message's entries findable by binary search and puts
the next due entries together. The second part puts the ended offsets of one part of the timer queue together, whatever
their due times are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.files import fileutil
from raymq.storage.timers.expiry_watermark import ExpiryWatermark, is_expired
from raymq.storage.timers.timer_entry import ENTRY, Entries, EntryKind, SortKey, sort_entries

_MARK: Final = struct.Struct(">q16xq")
_OFFSET: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """A run as the state records it.

    It has the number of its file, the numbers of its entries and ended offsets, and its highest physical offset. `crc`
    is the file's CRC-32; -1 if an older version did not record it.
    """

    number: int
    entries: int
    ended: int
    last_physical_offset: int
    crc: int = -1


class TimerRun:
    """One run file, mapped into memory. It never changes; any thread may use it."""

    def __init__(self, folder: Path, metadata: RunMetadata, *, check: bool = True) -> None:
        """Map the file.

        Args:
            check: compare the checksum, which reads all of the file.

        Raises:
            StoreCorrupt: the file is missing, or its content has changed.
            StoreBusy, StoreFailed: it could not be opened.
        """
        self.path = path_of(folder, metadata.number)
        self.metadata = metadata
        size = metadata.entries * ENTRY.itemsize + metadata.ended * _OFFSET.size
        try:
            fd = fileutil.open_to_read(self.path)
        except FileNotFoundError:
            raise StoreCorrupt(str(self.path), 0, "not a file of timers") from None
        try:
            present = os.fstat(fd).st_size
            if present != size or not metadata.entries:
                raise StoreCorrupt(str(self.path), 0, f"timers of {present} bytes, not {size}")
            call = partial(mmap.mmap, fd, size, access=mmap.ACCESS_READ)
            self._view = fileutil.attempt("map", self.path, call, reserved=True)
        finally:
            fileutil.close(fd)
        if check and metadata.crc not in (-1, zlib.crc32(self._view)):
            raise StoreCorrupt(str(self.path), 0, "timers with a wrong checksum")
        self._entries = np.frombuffer(self._view, ENTRY, metadata.entries)
        self._ended = np.frombuffer(self._view, ">i8", metadata.ended, metadata.entries * ENTRY.itemsize)
        #: The sort keys of the first and the last entry.
        self.first, self.last = self.mark(0), self.mark(metadata.entries - 1)

    def __len__(self) -> int:
        return self.metadata.entries

    @property
    def has_dropped(self) -> bool:
        """Return True if the run has a message as undeliverable; reads all."""
        return bool((self._entries["kind"] == EntryKind.DROPPED).any())

    def mark(self, number: int) -> SortKey:
        """Return the sort key (due time and key) of an entry."""
        due_ms, key = _MARK.unpack_from(self._view, number * ENTRY.itemsize)
        return due_ms, key

    def lower_bound(self, mark: SortKey) -> int:
        """Return the number of the first entry whose sort key is at least `mark`."""
        if mark <= self.first:
            return 0
        if mark > self.last:
            return len(self)
        return _first(0, len(self), lambda number: self.mark(number) >= mark)

    def part(self, first: int, stop: int) -> Entries:
        """Return a view of the entries first..stop-1."""
        return self._entries[first:stop]

    def of(self, due_ms: int, key: int) -> Entries:
        """Return the entries with that due time and key."""
        if not self.first <= (due_ms, key) <= self.last:
            return self._entries[:0]
        first = self.lower_bound((due_ms, key))
        stop = first
        while stop < len(self) and self.mark(stop) == (due_ms, key):
            stop += 1
        return self._entries[first:stop]

    def ended_between(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the timer queue's offsets in first..stop-1 that the run records as ended."""
        numbers = [self._lower_ended(offset) for offset in (first, stop)]
        return self._ended[slice(*numbers)].astype(np.int64)

    def _lower_ended(self, offset: int) -> int:
        base = self.metadata.entries * ENTRY.itemsize

        def reached(number: int) -> bool:
            found: int = _OFFSET.unpack_from(self._view, base + number * _OFFSET.size)[0]
            return found >= offset

        return _first(0, self.metadata.ended, reached)


def _first(low: int, high: int, reached: Callable[[int], bool]) -> int:
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low


def path_of(folder: Path, number: int) -> Path:
    """Return the path of a run's file."""
    return folder / f"run.{number:010d}"


def write_run(folder: Path, number: int, parts: Iterable[Entries]) -> TimerRun | None:
    """Write a run of sorted entries and sync it.

    Return None, and leave no file, if there are no entries.

    Raises:
        StoreFull, StoreFailed: the run was not written.
    """
    path = path_of(folder, number)
    try:
        metadata = _write(path, number, parts)
        if metadata.entries:
            return TimerRun(folder, metadata, check=False)
    except BaseException:
        # On a full disk the partial file would take the space that other files and every retry need.
        with contextlib.suppress(StoreError):
            fileutil.remove(path)
        raise
    fileutil.remove(path)
    return None


def _write(path: Path, number: int, parts: Iterable[Entries]) -> RunMetadata:
    count, last_physical_offset, crc = 0, -1, 0
    ended: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    fd = fileutil.open_for_append(path)
    try:
        fileutil.truncate(fd, 0, path)
        for part in parts:
            if len(part):
                content = part.tobytes()
                fileutil.write_all(fd, content, path)
                crc = zlib.crc32(content, crc)
                count += len(part)
                last_physical_offset = max(last_physical_offset, int(part["physical_offset"].max()))
                ended.append(part["queue_offset"][part["kind"] != EntryKind.WAITS].astype(np.int64))
        offsets = np.unique(np.concatenate(ended))
        content = offsets.astype(">i8").tobytes()
        fileutil.write_all(fd, content, path)
        crc = zlib.crc32(content, crc)
        fileutil.fdatasync(fd, path)
    finally:
        fileutil.close(fd)
    return RunMetadata(number, count, len(offsets), last_physical_offset, crc)


def merge_runs(runs: Iterable[TimerRun], overs: Sequence[ExpiryWatermark], chunk: int = 1 << 14) -> Iterable[Entries]:
    """Iterate over all unexpired entries of some runs in order, about `chunk` at a time."""
    remaining = [(run, 0) for run in runs]
    while remaining := [(run, at) for run, at in remaining if at < len(run)]:
        each = max(1, chunk // len(remaining))
        bound = min((run.mark(at + each - 1) for run, at in remaining if at + each < len(run)), default=None)
        parts, following = [], []
        for run, at in remaining:
            stop = min(at + each, len(run))
            if bound is not None and run.mark(stop - 1) > bound:
                stop = min(stop, run.lower_bound((bound[0], bound[1] + 1)))
            parts.append(run.part(at, stop))
            following.append((run, stop))
        remaining = following
        entries = sort_entries(np.concatenate(parts).astype(ENTRY))
        yield entries[~is_expired(entries, overs)] if overs else entries
