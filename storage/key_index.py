"""The index of keys: RocketMQ's index files, from `topic#key` to physical offsets.

Derived data: rebuilt from the commit log as far as it is missing. What a look-up returns are candidates (other keys
may have the same hash), newest first; the caller compares topic and key.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage import fileutil
from raymq.storage.ahead import Ahead
from raymq.storage.byte_rows import some
from raymq.storage.checkpoint import IndexExtent
from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.java_hash import index_hash
from raymq.storage.mapped_file import MappedFile

#: begin time, end time, begin physical offset, end physical offset, used slots, number of the next entry.
HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
ENTRY: Final = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_ALLOCATE_STEP_BYTES = 1 << 20
_MAX_SECONDS = 0x7FFFFFFF
#: The next file is made when one part in so many of the last one is left.
_PREPARED_WHEN_LEFT: Final = 16


class _IndexFile:
    """One index file; the header is kept in attributes and written after the entries it counts."""

    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool, ahead: Ahead | None) -> None:
        self.path = path
        self._slot_count = slots
        self._capacity = entries
        self._entries_at = HEADER.size + slots * _SLOT.size
        size = file_bytes(slots, entries)
        if path.exists() and path.stat().st_size != size:
            raise StoreCorrupt(str(path), 0, f"an index of {path.stat().st_size} bytes, not {size}")
        self._file = MappedFile(path, 0, size, writable=writable, allocate_step_bytes=_ALLOCATE_STEP_BYTES, ahead=ahead)
        self._slots = np.frombuffer(self._file.view, ">i4", slots, HEADER.size)
        self._entries = np.frombuffer(self._file.view, ENTRY, entries, self._entries_at)
        (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self._used_slots, count) = (
            HEADER.unpack_from(self._file.view)
        )
        self.count = max(1, count)
        self._dirty = False
        #: Whether it was asked for its follower.
        self.followed = False
        if not (1 <= self.count <= entries and 0 <= self.begin_physical <= self.end_physical + 1):
            self.close()
            raise StoreCorrupt(str(path), 0, f"an index header with {count} of {entries} entries")

    def allocate_ahead(self) -> None:
        """Give header and slots their blocks, before the first entry comes."""
        self._file.allocate_ahead(0, self._entries_at + _ENTRY.size)

    @property
    def room(self) -> int:
        return int(self._capacity - self.count)

    def put(
        self,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        timestamps_ms: npt.NDArray[np.int64],
        end_physical: int,
    ) -> None:
        """Write entries, at most `room`, in log order; records up to `end_physical` are then wholly indexed."""
        first, n = self.count, len(hashes)
        self._file.allocate(0, self._entries_at + (first + n) * _ENTRY.size)
        if first == 1:
            self.begin_ms, self.begin_physical = int(timestamps_ms[0]), int(offsets[0])
        numbers = np.arange(first, first + n, dtype=np.int32)
        slots = hashes % self._slot_count
        previous = self._slots[slots].astype(np.int32)
        stale = previous.view(np.uint32) >= first
        if some(stale):  # Of entries that no header ever counted.
            previous[stale] = 0
        # Slot and place in one word: NumPy sorts words much faster than it sorts indirectly.
        by_slot = np.sort(slots.astype(np.int64) << 32 | np.arange(n))
        again = np.flatnonzero(by_slot[1:] >> 32 == by_slot[:-1] >> 32)
        if len(again):  # Of two new entries in a slot the later one's previous one is the earlier one.
            previous[by_slot[again + 1] & 0xFFFFFFFF] = first + (by_slot[again] & 0xFFFFFFFF)
        self._used_slots += n - int(np.count_nonzero(previous))
        entries = self._entries[first : first + n]
        entries["hash"] = hashes
        entries["physical_offset"] = offsets
        entries["seconds"] = np.clip((timestamps_ms - self.begin_ms) // 1000, 0, _MAX_SECONDS)
        entries["previous"] = previous
        failpoint("index.before_slots")
        self._slots[slots] = numbers  # Of equal slots the last one wins.
        failpoint("index.before_header")
        self._finish(first + n, end_physical, int(timestamps_ms[-1]))

    def put_one(self, key_hash: int, physical_offset: int, timestamp_ms: int, end_physical: int) -> None:
        """Write one entry; there must be room. Records up to `end_physical` are then wholly indexed."""
        number, view = self.count, self._file.view
        at = self._entries_at + number * _ENTRY.size
        self._file.allocate(0, at + _ENTRY.size)
        if number == 1:
            self.begin_ms, self.begin_physical = timestamp_ms, physical_offset
        slot_at = HEADER.size + key_hash % self._slot_count * _SLOT.size
        previous = _SLOT.unpack_from(view, slot_at)[0]
        if not 0 < previous < number:
            previous = 0
            self._used_slots += 1
        seconds = min(max(0, (timestamp_ms - self.begin_ms) // 1000), _MAX_SECONDS)
        _ENTRY.pack_into(view, at, key_hash, physical_offset, seconds, previous)
        failpoint("index.one_before_slot")
        _SLOT.pack_into(view, slot_at, number)
        failpoint("index.one_before_header")
        self._finish(number + 1, end_physical, timestamp_ms)

    def _finish(self, count: int, end_physical: int, end_ms: int) -> None:
        # In this order: whoever reads them in the other one, in another thread, gets a count that covers the offset.
        self.count, self.end_physical, self.end_ms = count, end_physical, end_ms
        self._dirty = True
        HEADER.pack_into(
            self._file.view,
            0,
            self.begin_ms,
            end_ms,
            self.begin_physical,
            end_physical,
            self._used_slots,
            count,
        )

    def find(self, key_hash: int) -> Iterator[int]:
        """Physical offsets of the entries of that hash, newest first."""
        number = _SLOT.unpack_from(self._file.view, HEADER.size + key_hash % self._slot_count * _SLOT.size)[0]
        # A slot may point at entries that the header does not count yet; the chain itself is whole.
        while 0 < number < self._capacity:
            found, physical_offset, _, previous = _ENTRY.unpack_from(
                self._file.view, self._entries_at + number * _ENTRY.size
            )
            if found == key_hash and number < self.count:
                yield physical_offset
            if previous >= number:
                return
            number = previous

    def cap(self, log_end: int) -> None:
        if self.count > 1 and self.end_physical >= log_end:
            self._finish(self.count, log_end - 1, self.end_ms)

    @property
    def header(self) -> tuple[int, int, int, int, int, int]:
        """What the header says, the count last: in another thread it covers at least the rest."""
        begin = self.begin_ms, self.end_ms, self.begin_physical, self.end_physical
        return (*begin, self._used_slots, self.count)

    def restore(self, header: tuple[int, int, int, int, int, int]) -> None:
        """Back to a header whose entries are on disk: the slots are made anew from them."""
        self.begin_ms, end_ms, self.begin_physical, end_physical, _, count = header
        numbers = np.arange(1, count, dtype=np.int32)
        self._slots[:] = 0
        self._slots[self._entries["hash"][1:count] % self._slot_count] = numbers  # Of equal slots the last one wins.
        self._used_slots = int(np.count_nonzero(self._slots))
        self._finish(count, end_physical, end_ms)

    def repair(self) -> None:
        """After a crash: point slots whose newest entries the header does not count at the ones it does."""
        slots = self._slots
        ahead = np.flatnonzero(slots >= self.count)
        while len(ahead):
            numbers = slots[ahead].astype(np.int64)
            previous = self._entries["previous"][np.minimum(numbers, self._capacity - 1)]
            slots[ahead] = np.where((previous < numbers) & (numbers < self._capacity), previous, 0)
            ahead = ahead[slots[ahead] >= self.count]

    def sync(self) -> None:
        if self._dirty:
            self._dirty = False
            self._file.sync()

    def close(self) -> None:
        if hasattr(self, "_slots"):
            del self._slots, self._entries
        self._file.close()


def file_bytes(slots: int, entries: int) -> int:
    """The size of an index file."""
    return HEADER.size + slots * _SLOT.size + entries * _ENTRY.size


class KeyIndex:
    """All index files of a store. Belongs to the store's writer; `sync` to any thread."""

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries: int,
        *,
        writable: bool,
        ahead: Ahead | None = None,
        rebuilt: bool = False,
    ) -> None:
        """Look at the files.

        Args:
            ahead: where the next pages and the next file are prepared.
            rebuilt: the sizes are surely those of these files: one that is damaged is dropped with those behind it,
                and recovery fills the index again from there.

        Raises:
            StoreCorrupt: a file of another size or with an impossible header, unless `rebuilt`.
        """
        self._folder = folder
        self._slots = slots
        self._capacity = entries
        self._writable = writable
        self._ahead = ahead
        self._prepared: _IndexFile | None = None
        self._preparing = threading.Lock()
        paths = sorted(p for p in folder.iterdir() if p.name.isdigit() and len(p.name) == 17) if folder.is_dir() else []
        if paths and paths[-1].stat().st_size == 0:  # The process died when it had just made the file.
            newest = paths.pop()
            if writable:
                fileutil.remove(newest)
        self._files: list[_IndexFile] = []
        self._new_names = False
        for number, path in enumerate(paths):
            try:
                self._files.append(_IndexFile(path, slots, entries, writable=writable, ahead=ahead))
            except StoreCorrupt:
                if not rebuilt:
                    raise
                for dropped in paths[number:] if writable else ():
                    fileutil.remove(dropped)
                return

    def extent(self) -> IndexExtent:
        """What `sync` brings to disk, and what `restore` can go back to. Any thread."""
        return IndexExtent({file.path.name: file.header for file in list(self._files)})

    def check_against(self, extent: IndexExtent, log_min: int, *, clean: bool) -> None:
        """Forget the files from one on that is gone although the log has its records, or has another header.

        Args:
            clean: nothing was written since; otherwise the last file may have grown.
        """
        headers = {file.path.name: file.header for file in self._files}
        growing = "" if clean else max(extent.files, default="")
        wrong = [
            name
            for name, header in extent.files.items()
            if header[3] >= log_min - 1 and headers.get(name) != header and not (name == growing and name in headers)
        ]
        if wrong:
            self._drop([file for file in self._files if file.path.name >= min(wrong)])

    def restore(self, extent: IndexExtent) -> None:
        """After a loss of power: back to `extent`; what was written later is not trusted."""
        last = max(extent.files, default="")
        self._drop([file for file in self._files if file.path.name > last])
        if self._files and self._files[-1].path.name == last:
            self._files[-1].restore(extent.files[last])

    def _drop(self, files: list[_IndexFile]) -> None:
        for file in files:
            self._files.remove(file)
            file.close()
            if self._writable:
                fileutil.remove(file.path)

    def detach_before(self, log_min: int) -> list[tuple[Path, _IndexFile]]:
        """Forget the files all of whose records lie before `log_min`, never the newest; they are open yet."""
        gone: list[_IndexFile] = []
        for file in self._files[:-1]:
            if file.end_physical >= log_min - 1:  # It may hold the first keys of a record whose last ones lie behind.
                break
            gone.append(file)
        if gone:
            self._files = self._files[len(gone) :]
        return [(file.path, file) for file in gone]

    @property
    def end_physical(self) -> int:
        """Physical offset of the newest record that is indexed; -1 if none is."""
        return max((file.end_physical for file in self._files if file.count > 1), default=-1)

    @property
    def end_ms(self) -> int:
        """Store time of the newest record that is indexed; 0 if none is."""
        return max((file.end_ms for file in self._files if file.count > 1), default=0)

    def put(
        self, hashes: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], timestamps_ms: npt.NDArray[np.int64]
    ) -> None:
        """Index keys in log order, three parallel arrays; rolls to new files as needed."""
        at = 0
        while at < len(hashes):
            file = self._file_with_room()
            stop = min(len(hashes), at + file.room)
            last = int(offsets[stop - 1])
            complete = stop == len(hashes) or int(offsets[stop]) != last
            file.put(hashes[at:stop], offsets[at:stop], timestamps_ms[at:stop], last if complete else last - 1)
            at = stop

    def put_record(self, hashes: list[int], physical_offset: int, timestamp_ms: int) -> None:
        """Index the keys of one record."""
        for number, key_hash in enumerate(hashes, 1):
            end_physical = physical_offset if number == len(hashes) else physical_offset - 1
            self._file_with_room().put_one(key_hash, physical_offset, timestamp_ms, end_physical)

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of records that may have the key, newest first; the time window only skips whole files."""
        key_hash = index_hash(f"{topic}#{key}")
        for file in reversed(self._files):
            if file.count > 1 and file.begin_ms <= end_ms and begin_ms <= file.end_ms:
                yield from file.find(key_hash)

    def drop_after(self, timestamp_ms: int) -> None:
        """Delete the files with records stored later than that: after a crash of the machine they are not trusted."""
        self._drop([file for file in self._files if file.count <= 1 or file.end_ms > timestamp_ms])

    def cap(self, log_end: int) -> None:
        """Forget that records at or behind `log_end` were indexed: the log has lost them.

        Their entries stay as candidates that no record confirms.
        """
        for file in self._files:
            file.cap(log_end)

    def repair(self) -> None:
        """After a crash of the process: see `_IndexFile.repair`."""
        if self._files:
            self._files[-1].repair()

    def sync(self) -> None:
        """Wait until the entries of before the call are on disk."""
        if self._new_names:
            self._new_names = False
            for folder in (self._folder, self._folder.parent):
                fileutil.sync_directory(folder)
        for file in list(self._files):
            file.sync()

    def close(self) -> None:
        """Let go of the files, and remove the one that was prepared and not needed."""
        for file in self._files:
            file.close()
        self._files.clear()
        if self._prepared is not None:
            self._prepared.close()
            with contextlib.suppress(StoreError):  # An empty file behind the last one harms nobody.
                fileutil.remove(self._prepared.path)
            self._prepared = None

    def _file_with_room(self) -> _IndexFile:
        if self._files and self._files[-1].room > 0:
            newest = self._files[-1]
            if newest.room <= self._capacity // _PREPARED_WHEN_LEFT and not newest.followed and self._ahead is not None:
                newest.followed = True
                self._ahead.ask(partial(self._prepare_behind, newest))
            return newest
        with self._preparing:
            file, self._prepared = self._prepared or self._new_file(), None
            self._files.append(file)
        self._new_names = True
        return file

    def _prepare_behind(self, newest: _IndexFile) -> None:
        """Make the file that follows `newest`, with blocks for its slots. In the thread of `Ahead`."""
        with self._preparing:
            if self._files and self._files[-1] is newest and self._prepared is None:
                self._prepared = self._new_file()
                self._prepared.allocate_ahead()

    def _new_file(self) -> _IndexFile:
        now = time.time()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        if self._files and name <= self._files[-1].path.name:  # Within the same millisecond, or the clock went back.
            name = f"{int(self._files[-1].path.name) + 1:017d}"
        if self._writable:
            fileutil.make_folder(self._folder, durable=False)
        path = self._folder / name
        return _IndexFile(path, self._slots, self._capacity, writable=self._writable, ahead=self._ahead)
