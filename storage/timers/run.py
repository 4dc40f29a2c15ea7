"""Files of the timer log that are written once: entries in the order of due time and key.

```
entries, 40 B each, by (due time, key) | offsets in the timer queue of those that wait no more, i8 each, ascending
```

How many there are of both says the log's state. So what one recall asks for is found by halving, what is due next lies
together, and so do the ends of what waited in one part of the timer queue, whatever their due times.
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
from raymq.storage.timers.entry import ENTRY, Entries, EntryKind, Mark, in_order
from raymq.storage.timers.over import Over, is_over

_MARK: Final = struct.Struct(">q16xq")
_OFFSET: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RunShape:
    """What the state says of a run: its file's number, how much it holds, the highest physical offset in it, and the
    file's CRC-32, which was not always written down (-1).
    """

    number: int
    entries: int
    ended: int
    last_place: int
    crc: int = -1


class TimerRun:
    """One file. It never changes; any thread."""

    def __init__(self, folder: Path, shape: RunShape, *, check: bool = True) -> None:
        """Map it.

        Args:
            check: compare the checksum, which reads all of it.

        Raises:
            StoreCorrupt: it is missing, or not what it was. StoreBusy, StoreFailed: it could not be opened.
        """
        self.path = path_of(folder, shape.number)
        self.shape = shape
        size = shape.entries * ENTRY.itemsize + shape.ended * _OFFSET.size
        try:
            fd = fileutil.open_to_read(self.path)
        except FileNotFoundError:
            raise StoreCorrupt(str(self.path), 0, "no timers") from None
        try:
            present = os.fstat(fd).st_size
            if present != size or not shape.entries:
                raise StoreCorrupt(str(self.path), 0, f"timers of {present} bytes, not {size}")
            call = partial(mmap.mmap, fd, size, access=mmap.ACCESS_READ)
            self._view = fileutil.attempt("map", self.path, call, reserved=True)
        finally:
            fileutil.close(fd)
        if check and shape.crc not in (-1, zlib.crc32(self._view)):
            raise StoreCorrupt(str(self.path), 0, "timers of another checksum")
        self._entries = np.frombuffer(self._view, ENTRY, shape.entries)
        self._ended = np.frombuffer(self._view, ">i8", shape.ended, shape.entries * ENTRY.itemsize)
        #: The first and the last one's.
        self.first, self.last = self.mark(0), self.mark(shape.entries - 1)

    def __len__(self) -> int:
        return self.shape.entries

    def mark(self, number: int) -> Mark:
        """Due time and key of an entry."""
        due_ms, key = _MARK.unpack_from(self._view, number * ENTRY.itemsize)
        return due_ms, key

    def lower(self, mark: Mark) -> int:
        """The number of the first entry at or behind `mark`."""
        if mark <= self.first:
            return 0
        if mark > self.last:
            return len(self)
        return _first(0, len(self), lambda number: self.mark(number) >= mark)

    def part(self, first: int, stop: int) -> Entries:
        """The entries first..stop-1: a view."""
        return self._entries[first:stop]

    def of(self, due_ms: int, key: int) -> Entries:
        """The entries of that mark."""
        if not self.first <= (due_ms, key) <= self.last:
            return self._entries[:0]
        first = self.lower((due_ms, key))
        stop = first
        while stop < len(self) and self.mark(stop) == (due_ms, key):
            stop += 1
        return self._entries[first:stop]

    def ended_between(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """The offsets first..stop-1 of the timer queue of which it says that they wait no more."""
        numbers = [self._lower_ended(offset) for offset in (first, stop)]
        return self._ended[slice(*numbers)].astype(np.int64)

    def _lower_ended(self, offset: int) -> int:
        base = self.shape.entries * ENTRY.itemsize

        def reached(number: int) -> bool:
            found: int = _OFFSET.unpack_from(self._view, base + number * _OFFSET.size)[0]
            return found >= offset

        return _first(0, self.shape.ended, reached)


def _first(low: int, high: int, reached: Callable[[int], bool]) -> int:
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low


def path_of(folder: Path, number: int) -> Path:
    """The file of a run."""
    return folder / f"run.{number:010d}"


def write_run(folder: Path, number: int, parts: Iterable[Entries]) -> TimerRun | None:
    """Write a run of entries that are in order, and bring it to disk; None, and no file, if there are none.

    Raises:
        StoreFull, StoreFailed: it is not there.
    """
    path = path_of(folder, number)
    try:
        shape = _write(path, number, parts)
        if shape.entries:
            return TimerRun(folder, shape, check=False)
    except BaseException:
        # On a full disk it would be in the way of all others, and so would each that is tried after it.
        with contextlib.suppress(StoreError):
            fileutil.remove(path)
        raise
    fileutil.remove(path)
    return None


def _write(path: Path, number: int, parts: Iterable[Entries]) -> RunShape:
    count, last_place, crc = 0, -1, 0
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
                last_place = max(last_place, int(part["physical_offset"].max()))
                ended.append(part["queue_offset"][part["kind"] != EntryKind.WAITS].astype(np.int64))
        offsets = np.unique(np.concatenate(ended))
        content = offsets.astype(">i8").tobytes()
        fileutil.write_all(fd, content, path)
        crc = zlib.crc32(content, crc)
        fileutil.fdatasync(fd, path)
    finally:
        fileutil.close(fd)
    return RunShape(number, count, len(offsets), last_place, crc)


def merged(runs: Iterable[TimerRun], overs: Sequence[Over], chunk: int = 1 << 14) -> Iterable[Entries]:
    """All entries of some runs in order, about `chunk` at a time; not those of what is over."""
    left = [(run, 0) for run in runs]
    while left := [(run, at) for run, at in left if at < len(run)]:
        each = max(1, chunk // len(left))
        bound = min((run.mark(at + each - 1) for run, at in left if at + each < len(run)), default=None)
        parts, following = [], []
        for run, at in left:
            stop = min(at + each, len(run))
            if bound is not None and run.mark(stop - 1) > bound:
                stop = min(stop, run.lower((bound[0], bound[1] + 1)))
            parts.append(run.part(at, stop))
            following.append((run, stop))
        left = following
        entries = in_order(np.concatenate(parts).astype(ENTRY))
        yield entries[~is_over(entries, overs)] if overs else entries
