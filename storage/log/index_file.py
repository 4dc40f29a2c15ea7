"""One file of the index of keys; see `key_index`."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt, StoreFailed
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.background_preparer import BackgroundPreparer
from raymq.storage.files.mapped_file import MappedFile, sync_path
from raymq.storage.files.mapped_file_cache import MappedFileCache
from raymq.storage.records import native_kernels
from raymq.storage.records.byte_rows import any_true

#: begin time, end time, begin physical offset, end physical offset, used slots, number of the next entry.
HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
ENTRY: Final = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_ALLOCATE_STEP_BYTES = 1 << 20
_MAX_SECONDS = 0x7FFFFFFF
#: How many entries are read at a time without mapping the file.
_READ_ENTRIES: Final = 64
#: Later than every store time.
EVER_MS: Final = 1 << 62


class IndexFile:
    """One index file; its header is kept in attributes, and written after its entries."""

    def __init__(
        self,
        path: Path,
        slots: int,
        entries: int,
        *,
        writable: bool,
        ahead: BackgroundPreparer | None = None,
        open_files: MappedFileCache | None = None,
    ) -> None:
        """Read the header; a missing file is made with its first entry.

        Args:
            ahead, open_files: as in `MappedFileQueue`.

        Raises:
            StoreCorrupt: it has another size, or an impossible header.
        """
        self.path = path
        self._slot_count = slots
        self._capacity = entries
        self._writable = writable
        self._ahead = ahead
        self._file_cache = open_files
        self._entries_at = HEADER.size + slots * _SLOT.size
        self._size = file_bytes(slots, entries)
        self._file: MappedFile | None = None
        content = bytes(HEADER.size)
        if path.exists():
            if path.stat().st_size != self._size:
                raise StoreCorrupt(str(path), 0, f"an index of {path.stat().st_size} bytes, not {self._size}")
            content = fileutil.read_head(path, HEADER.size)
        (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self._used_slots, count) = HEADER.unpack(
            content
        )
        self.count: int = max(1, count)
        self._dirty = False
        #: Entries below this number have blocks, and can be written without another allocation or request.
        self.reserved_to = 0
        #: Whether keys are put into this file; it may use reserved descriptors then.
        self.growing = False
        #: Whether the next file was requested.
        self.next_requested = False
        if not (1 <= self.count <= entries and 0 <= self.begin_physical <= self.end_physical + 1):
            raise StoreCorrupt(str(path), 0, f"an index header with {count} of {entries} entries")

    def _mapped(self) -> MappedFile:
        """Return the file, mapping it if needed."""
        file = self._file
        if file is None or file.closed:
            file = self._file = MappedFile(
                self.path,
                0,
                self._size,
                writable=self._writable,
                allocate_step_bytes=_ALLOCATE_STEP_BYTES,
                ahead=self._ahead,
                reserved=self.growing,
            )
            if self._file_cache is not None:
                self._file_cache.add(self, file)
        file.used = True
        return file

    def _slots_of(self, file: MappedFile) -> npt.NDArray[np.int32]:
        return np.frombuffer(file.view, ">i4", self._slot_count, HEADER.size)

    def _entries_of(self, file: MappedFile) -> npt.NDArray[np.void]:
        return np.frombuffer(file.view, ENTRY, self._capacity, self._entries_at)

    def close_mapping(self, _start: int, /) -> None:
        """Close the mapping; it is made again when needed."""
        self.close()

    def reserve(self, count: int) -> MappedFile:
        """Make sure that `count` more entries can be written; return the mapped file.

        `count` is at most `room`. Raise StoreFull if the disk has no room.
        """
        file = self._mapped()
        file.allocate(0, self._entries_at + (self.count + count) * _ENTRY.size)
        self.reserved_to = min(self._capacity, (file.ready_to - self._entries_at) // _ENTRY.size)
        return file

    @property
    def room(self) -> int:
        """Return how many entries the file can still take."""
        return self._capacity - self.count

    def put(
        self,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        timestamps_ms: npt.NDArray[np.int64],
        end_physical: int,
    ) -> None:
        """Write at most `room` entries in log order.

        Records up to `end_physical` are completely indexed then.
        """
        first, n = self.count, len(hashes)
        file = self.reserve(n)
        if first == 1:
            self.begin_ms, self.begin_physical = int(timestamps_ms[0]), int(offsets[0])
        seconds = np.clip((timestamps_ms - self.begin_ms) // 1000, 0, _MAX_SECONDS).astype(np.int32)
        kernels = native_kernels.kernels
        if kernels is None:
            slots, used = self._put_entries(file, hashes, offsets, seconds)
            failpoint("index.before_slots")
            self._slots_of(file)[slots] = np.arange(
                first, first + n, dtype=np.int32
            )  # NumPy keeps the last value of equal slots.
        else:  # The native kernel writes each entry before its slot points to it.
            parts = file.view[HEADER.size : self._entries_at], file.view[self._entries_at : self._size]
            used = kernels.put_keys(*parts, first, hashes, offsets, seconds)
        self._used_slots += used
        failpoint("index.before_header")
        self._finish(file, first + n, end_physical, int(timestamps_ms[-1]))

    def _put_entries(
        self,
        file: MappedFile,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        seconds: npt.NDArray[np.int32],
    ) -> tuple[npt.NDArray[np.int32], int]:
        """Write entries with NumPy.

        Return the slots that have to point to them, and how many of these slots were empty.
        """
        first, n = self.count, len(hashes)
        slots = hashes % self._slot_count
        previous = self._slots_of(file)[slots].astype(np.int32)
        stale = previous.view(np.uint32) >= first
        if any_true(stale):  # Numbers of entries that no header ever counted.
            previous[stale] = 0
        # Slot and number in one word: NumPy sorts words much faster than it sorts indirectly.
        by_slot = np.sort(slots.astype(np.int64) << 32 | np.arange(n))
        again = np.flatnonzero(by_slot[1:] >> 32 == by_slot[:-1] >> 32)
        if len(again):  # A new entry's predecessor may be another new entry in the same slot.
            previous[by_slot[again + 1] & 0xFFFFFFFF] = first + (by_slot[again] & 0xFFFFFFFF)
        entries = self._entries_of(file)[first : first + n]
        entries["hash"] = hashes
        entries["physical_offset"] = offsets
        entries["seconds"] = seconds
        entries["previous"] = previous
        return slots, n - int(np.count_nonzero(previous))

    def put_few(self, hashes: list[int], physical_offset: int, timestamp_ms: int, end_physical: int) -> None:
        """Write a few keys of one record without NumPy; otherwise as `put`."""
        file, number = self._file, self.count
        if file is None or file.closed or number + len(hashes) > self.reserved_to:
            file = self.reserve(len(hashes))
        file.used = True
        if number == 1:
            self.begin_ms, self.begin_physical = timestamp_ms, physical_offset
        seconds = (timestamp_ms - self.begin_ms) // 1000
        if not 0 <= seconds <= _MAX_SECONDS:
            seconds = 0 if seconds < 0 else _MAX_SECONDS
        kernels = native_kernels.kernels
        if kernels is None:
            self._put_few(file.view, number, hashes, physical_offset, seconds)
        else:
            self._used_slots += kernels.put_few(
                file.view, HEADER.size, self._entries_at, self._size, number, hashes, physical_offset, seconds
            )
        number += len(hashes)
        failpoint("index.one_before_header")
        self._finish(file, number, end_physical, timestamp_ms)

    def _put_few(self, view: memoryview, number: int, hashes: list[int], physical_offset: int, seconds: int) -> None:
        first, at = number, self._entries_at + number * _ENTRY.size
        for key_hash in hashes:
            which = key_hash % self._slot_count
            slot_at = HEADER.size + which * _SLOT.size
            previous = _SLOT.unpack_from(view, slot_at)[0]
            # A number from `first` on is valid only if its entry belongs to this slot; otherwise it is stale.
            if not 0 < previous < number or (
                previous >= first
                and _ENTRY.unpack_from(view, self._entries_at + previous * _ENTRY.size)[0] % self._slot_count != which
            ):
                previous = 0
                self._used_slots += 1
            _ENTRY.pack_into(view, at, key_hash, physical_offset, seconds, previous)
            failpoint("index.one_before_slot")
            _SLOT.pack_into(view, slot_at, number)
            number, at = number + 1, at + _ENTRY.size

    def _finish(self, file: MappedFile, count: int, end_physical: int, end_ms: int) -> None:
        # A thread that reads these in the reverse order gets a count that covers the offset.
        self.count, self.end_physical, self.end_ms = count, end_physical, end_ms
        self._dirty = True
        HEADER.pack_into(
            file.view, 0, self.begin_ms, end_ms, self.begin_physical, end_physical, self._used_slots, count
        )

    def find(self, key_hash: int, begin_ms: int = 0, end_ms: int = EVER_MS) -> Iterator[int | None]:
        """Yield physical offsets of the hash's entries stored within begin..end, newest first.

        None is yielded for each examined entry that does not match, so that the caller can count the work and pause.
        Any thread: a file that is being written is read without being mapped, and a file that was removed meanwhile has
        no entries.
        """
        with self._reading() as read:
            number = _SLOT.unpack(read(_SLOT.size, HEADER.size + key_hash % self._slot_count * _SLOT.size))[0]
            # A slot may point to entries that the header does not count yet; the chain itself is complete.
            while 0 < number < self._capacity:
                entry = read(_ENTRY.size, self._entries_at + number * _ENTRY.size)
                found, physical_offset, seconds, previous = _ENTRY.unpack(entry)
                is_match = found == key_hash and number < self.count and self._may_be_within(seconds, begin_ms, end_ms)
                yield physical_offset if is_match else None
                if previous >= number:
                    return
                number = previous

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Callable[[int, int], bytes | memoryview]]:
        """Yield a function that reads `length` bytes at a position of the file."""
        if not self._writable:
            view = self._mapped().view  # Recovery may have added entries that exist in memory only.
            yield lambda length, at: view[at : at + length]
            return
        try:
            fd = fileutil.open_to_read(self.path)
        except FileNotFoundError:
            yield lambda length, _: bytes(length)
            return
        try:
            yield partial(os.pread, fd)
        except OSError as error:
            raise StoreFailed(f"could not read {self.path}: {error}") from error
        finally:
            fileutil.close(fd)

    def _may_be_within(self, seconds: int, begin_ms: int, end_ms: int) -> bool:
        """Return True if a store time may lie within begin..end.

        It is given in whole seconds after the store time of the file's first record.
        """
        earliest_ms = self.begin_ms + seconds * 1000
        # Seconds are clipped: the least value also means earlier, the largest also later.
        return (earliest_ms <= end_ms or seconds <= 0) and (begin_ms < earliest_ms + 1000 or seconds == _MAX_SECONDS)

    def newest(self) -> Iterator[tuple[int, int]]:
        """Yield physical offset and hash of the entries in the file, newest first.

        The file is not mapped for that.
        """
        with self.path.open("rb") as stream:
            for stop in range(self.count, 1, -_READ_ENTRIES):
                first = max(1, stop - _READ_ENTRIES)
                stream.seek(self._entries_at + first * _ENTRY.size)
                content = stream.read((stop - first) * _ENTRY.size)
                for key_hash, physical_offset, _, _ in reversed(list(_ENTRY.iter_unpack(content))):
                    yield physical_offset, key_hash

    def truncate(self, log_end: int) -> None:
        """Set the end of the indexed records below `log_end`; see `KeyIndex.truncate`."""
        if self.count > 1 and self.end_physical >= log_end:
            self._finish(self._mapped(), self.count, log_end - 1, self.end_ms)

    @property
    def header(self) -> tuple[int, int, int, int, int, int]:
        """Return the header's values, with the count read last.

        When another thread writes, the count therefore covers at least the other values.
        """
        begin = self.begin_ms, self.end_ms, self.begin_physical, self.end_physical
        return (*begin, self._used_slots, self.count)

    def restore(self, header: tuple[int, int, int, int, int, int]) -> None:
        """Return to a header whose entries are on disk, and rebuild the slots from them.

        Raise StoreFull if there is no room. Blocks are allocated first, because writing a slot in a hole of the file
        through the mapping would kill the process on a full disk.
        """
        self.begin_ms, end_ms, self.begin_physical, end_physical, _, count = header
        numbers = np.arange(1, count, dtype=np.int32)
        file = self._mapped()
        file.allocate(0, self._entries_at + count * _ENTRY.size)
        slots = self._slots_of(file)
        slots[:] = 0
        # NumPy keeps the last value of equal slots.
        slots[self._entries_of(file)["hash"][1:count] % self._slot_count] = numbers
        self._used_slots = int(np.count_nonzero(slots))
        self._finish(file, count, end_physical, end_ms)

    def mark_dirty(self) -> None:
        """Mark the file as unsynced: a crashed process may not have synced its writes."""
        self._dirty = True

    def repair(self) -> None:
        """Repair the slots after a crash.

        A slot whose newest entries the header does not count is set to the newest counted entry.
        """
        file = self._mapped()
        slots, entries = self._slots_of(file), self._entries_of(file)
        ahead = np.flatnonzero(slots >= self.count)
        while len(ahead):
            numbers = slots[ahead].astype(np.int64)
            previous = entries["previous"][np.minimum(numbers, self._capacity - 1)]
            slots[ahead] = np.where((previous < numbers) & (numbers < self._capacity), previous, 0)
            ahead = ahead[slots[ahead] >= self.count]

    def sync(self) -> None:
        """Wait until the entries from before the call are on disk; any thread."""
        if self._dirty:
            self._dirty = False
            try:
                if self._file is not None:
                    self._file.sync()
                else:
                    sync_path(self.path)
            except BaseException:
                self._dirty = True  # the next sync has to do it
                raise

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def file_bytes(slots: int, entries: int) -> int:
    """Return the size of an index file."""
    return HEADER.size + slots * _SLOT.size + entries * _ENTRY.size


def make_file(path: Path, slots: int, entries: int, reserved: int = 0) -> None:
    """Make an empty index file with blocks for header, slots and `reserved` entries.

    Raise StoreFull or StoreFailed if that fails.
    """
    fd = fileutil.create_sparse(path, file_bytes(slots, entries), reserved=True)
    try:
        fileutil.allocate(fd, 0, HEADER.size + slots * _SLOT.size + (1 + reserved) * _ENTRY.size, path)
    finally:
        fileutil.close(fd)
