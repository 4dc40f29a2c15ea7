"""The index of one queue: entry k locates the queue's k-th message in the log.

Entry: physical offset i8, size i4, tags code i8. Entries are derived data that can be rebuilt from the commit log. A
*filler* (offset 0, size 2**31 - 1) is the entry of an unknown message: one before the first message of a rebuilt queue,
or one that was lost.

The newest entries are in memory, the others in files; `EntryWriter` writes them there.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreError
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.files.mapped_file_cache import MappedFileCache
from raymq.storage.files.mapped_file_queue import MappedFileQueue, file_name
from raymq.storage.log.entry_writer import EntryWriter
from raymq.storage.log.queue_end import ENTRY, first_empty
from raymq.storage.records.record import MIN_RECORD_BYTES

_ENTRY = struct.Struct(">qiq")
ENTRY_BYTES: Final = _ENTRY.size
FILLER_SIZE: Final = 0x7FFFFFFF
#: Above all physical offsets that a log may ever have.
_FARTHEST: Final = 1 << 56
#: How many entries are examined at once in the search for one that is no filler.
_LOOKED_AT: Final = 4096
_FILLER: Final = np.array((0, FILLER_SIZE, 0), ENTRY)
#: Up to this many entries are read without mapping the file.
_FEW: Final = 64
#: Written entries are cut to this size in memory when they take twice as much.
_KEPT_BYTES: Final = 1600 * ENTRY_BYTES
#: How many fillers are appended at once.
_FILLED: Final = 65_536

Entries = npt.NDArray[np.void]


def make_entries(physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike) -> Entries:
    """Return entries in the format of the file."""
    entries: Entries = np.empty(np.shape(physical_offsets), ENTRY)
    entries["physical_offset"] = physical_offsets
    entries["size"] = sizes
    entries["tags_code"] = tags_codes
    return entries


class ConsumeQueue:
    """The entries of one queue; offsets count entries.

    Thread rule: a queue belongs to the store's writer. Any thread may call `sync`; `write` and `drop_written` belong to
    the thread that holds the lock of the `EntryWriter`. Only the writer appends entries to the tail and moves
    `max_offset`; only `write` and `drop_written` remove written entries from the tail's front. Each of these changes is
    one operation of the interpreter. The writer therefore locates an entry in the tail by its distance from the end.
    """

    def __init__(
        self,
        folder: Path,
        file_entries: int,
        *,
        writable: bool,
        whole_to: int | None = None,
        open_files: MappedFileCache | None = None,
        writer: EntryWriter | None = None,
    ) -> None:
        """Find the end of the queue; further arguments are as in `MappedFileQueue`.

        Args:
            whole_to: as in `MappedFileQueue`, but in entries.
            writer: the `EntryWriter` that writes new entries into the files; None = they stay in memory.
        """
        self._files = MappedFileQueue(
            folder,
            file_entries * ENTRY_BYTES,
            writable=writable,
            whole_to=None if whole_to is None else whole_to * ENTRY_BYTES,
            open_files=open_files,
        )
        self._first = self._files.start // ENTRY_BYTES
        #: The newest entries; those before offset `_written` are in files as well.
        self._tail = bytearray()
        self._writer = writer
        self.waiting = False
        self._closed = False
        self._tail_from = self._written = self.max_offset = self._find_end()
        self.min_offset = self._first
        #: The log's minimum for which `min_offset` was computed.
        self.trimmed_to = 0
        self._synced = self._first
        self._fresh_from = self.max_offset
        self._seen = (0, 0)
        #: Argument and result of the last call of `confirmed_end`.
        self._confirmed = (-1, 0)
        #: Readers see nothing from this offset on; None = no barrier (see `read_barrier`).
        self.barrier_offset: int | None = None

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Append one entry."""
        self._tail += _ENTRY.pack(physical_offset, size, tags_code)
        self.max_offset += 1
        writer = self._writer
        if writer is not None:
            writer.added += ENTRY_BYTES
            if not self.waiting:
                writer.add(self)

    def _append_many(self, entries: Entries) -> None:
        content = entries.tobytes()
        self._tail += content
        self.max_offset += len(entries)
        if self._writer is not None and content:
            self._writer.added += len(content)
            if not self.waiting:
                self._writer.add(self)

    def write(self) -> int:
        """Write the pending entries; see `entry_writer.PendingEntries`."""
        if self._closed:
            return 0
        begin = (self._written - self._tail_from) * ENTRY_BYTES
        content = bytes(self._tail[begin:])
        if content:
            self._files.write(self._written * ENTRY_BYTES, content)
            self._written += len(content) // ENTRY_BYTES
        if len(self._tail) >= 2 * _KEPT_BYTES:
            self._forget(len(self._tail) - _KEPT_BYTES)
        return len(content)

    def drop_written(self) -> None:
        """Drop the written entries from memory; see `entry_writer.PendingEntries`."""
        self._forget(len(self._tail))

    def _forget(self, most: int) -> None:
        """Drop the first `most` bytes of the tail, as far as they are written."""
        count = min(most // ENTRY_BYTES, self._written - self._tail_from)
        self._tail_from += count
        del self._tail[: count * ENTRY_BYTES]

    def reset_checked(self) -> None:
        """Mark all present messages as unchecked; messages appended later count as checked."""
        self._fresh_from = self.max_offset
        self._seen = (0, 0)

    def is_checked(self, offset: int, end: int) -> bool:
        """Return True if the messages offset..end (end excluded) were checked since the opening.

        A message is checked when it is appended, or by a read that compares it with its entry.
        """
        return offset >= self._fresh_from or (self._seen[0] <= offset and end <= self._seen[1])

    def set_checked(self, offset: int, end: int) -> None:
        """Record that a read has checked the messages offset..end (end excluded).

        One range is remembered besides the newest messages, because readers go in order.
        """
        begin, stop = self._seen
        if offset <= stop and begin <= end:
            offset, end = min(begin, offset), max(stop, end)
        if end >= self._fresh_from:
            self._fresh_from = min(self._fresh_from, offset)
        else:
            self._seen = offset, end

    def put(self, offset: int, entries: Entries) -> None:
        """Write entries from `offset` on, over existing ones or behind the end.

        A gap before them is filled with fillers. In an empty queue the first offset determines where the first file
        begins.
        """
        if self.max_offset == self._first == 0 and offset > 0 and not self._files.starts:
            file_entries = self._files.file_bytes // ENTRY_BYTES
            self._first = self.min_offset = offset - offset % file_entries
            self._tail_from = self._written = self.max_offset = self._first
        if offset < self._first:
            entries = entries[self._first - offset :]
            offset = self._first
        known = entries[: max(0, self.max_offset - offset)]
        if len(known):
            # Most entries that recovery puts are unchanged; skipping them avoids disk writes.
            if self.entries(offset, len(known)).tobytes() != known.tobytes():
                self._overwrite(offset, known)
            entries, offset = entries[len(known) :], offset + len(known)
        while offset > self.max_offset and len(entries):
            if self._writer is not None and offset - self.max_offset > _FILLED:
                self._writer.write(self)
            self._append_many(np.full(min(_FILLED, offset - self.max_offset), _FILLER, ENTRY))
        self._append_many(entries)

    def _overwrite(self, offset: int, entries: Entries) -> None:
        """Replace existing entries, in the files and in memory."""
        with contextlib.nullcontext() if self._writer is None else self._writer.lock:
            content = memoryview(entries.tobytes())
            in_memory = content[max(0, self._tail_from - offset) * ENTRY_BYTES :]
            at = max(0, offset - self._tail_from) * ENTRY_BYTES
            self._tail[at : at + len(in_memory)] = in_memory
            end = max(offset, min(offset + len(entries), self._written))
            for file, start, stop in self._files.ranges(offset * ENTRY_BYTES, end * ENTRY_BYTES):
                file.allocate(start, stop)
                file.view[start:stop] = content[: stop - start]
                content = content[stop - start :]
            self._synced = min(self._synced, offset)

    def entries(self, offset: int, count: int) -> Entries:
        """Return at most `count` entries from `offset` on, for immediate use.

        They are views of the mapping where possible.

        Args:
            offset: within min..max.
        """
        end = min(offset + count, self.max_offset)
        if end <= offset:
            return np.empty(0, ENTRY)
        while True:
            split = max(offset, min(end, self.max_offset - len(self._tail) // ENTRY_BYTES))
            newest = self._in_memory(split, end)
            if len(newest) == (end - split) * ENTRY_BYTES:
                break  # Else some entries were written and dropped just now: try again.
        if split == offset:
            return np.frombuffer(newest, ENTRY)
        older = self._in_files(offset, split)
        return np.concatenate([older, np.frombuffer(newest, ENTRY)]) if newest else older

    def _in_memory(self, offset: int, end: int) -> bytearray:
        """Return the bytes of the entries offset..end, except those not in memory.

        `end` is at most `max_offset`.
        """
        if end <= offset:
            return bytearray()
        return self._tail[(offset - self.max_offset) * ENTRY_BYTES : (end - self.max_offset) * ENTRY_BYTES or None]

    def _in_files(self, offset: int, end: int) -> Entries:
        if end - offset <= _FEW:
            part = self._files.read(offset * ENTRY_BYTES, (end - offset) * ENTRY_BYTES)
            if len(part) == (end - offset) * ENTRY_BYTES:
                return np.frombuffer(part, ENTRY)
        parts = [
            np.frombuffer(file.view, ENTRY, (stop - start) // ENTRY_BYTES, start)
            for file, start, stop in self._files.ranges(offset * ENTRY_BYTES, end * ENTRY_BYTES)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one entry."""
        part = self._in_memory(offset, offset + 1)
        return _ENTRY.unpack(part) if part else self._entry_in_file(offset)

    def _entry_in_file(self, offset: int) -> tuple[int, int, int]:
        return _ENTRY.unpack(self._files.read(offset * ENTRY_BYTES, ENTRY_BYTES))

    def file_position_of(self, offset: int) -> tuple[Path, int]:
        """Return the file that contains an entry, and the entry's position in it."""
        at = offset * ENTRY_BYTES
        start = at - at % self._files.file_bytes
        return self._files.folder / file_name(start), at - start

    def trim(self, log_min: int) -> None:
        """Set `min_offset` to the first entry whose message is at or behind `log_min`.

        This is a binary search. A damaged entry or a filler does not locate a message, so its neighbours are used
        instead. A damaged entry whose neighbours leave its position unknown counts as present; the read that finds it
        rebuilds it.
        """
        low, high = self._first, self.max_offset
        if low < high and self._is_there(self.entry(low), log_min):
            high = low
        while low < high:
            middle = (low + high) // 2
            there = self._is_there(self.entry(middle), log_min)
            if there is None:
                low, high = self._by_neighbours(low, middle, high, log_min)
            elif there:
                high = middle
            else:
                low = middle + 1
        self.min_offset = low
        self.trimmed_to = log_min

    @staticmethod
    def _is_there(entry: tuple[int, int, int], log_min: int) -> bool | None:
        """Return True if an entry's message is at or behind `log_min`.

        Return None if the entry is a filler or damaged.
        """
        physical_offset, size, _ = entry
        if not 0 <= physical_offset < _FARTHEST or not MIN_RECORD_BYTES <= size < FILLER_SIZE:
            return None
        return physical_offset >= log_min

    def _by_neighbours(self, low: int, middle: int, high: int, log_min: int) -> tuple[int, int]:
        """Narrow the range low..high when the entry in the middle locates no message."""
        before = self._last_message(low, middle)
        if before >= low and self._is_there(self.entry(before), log_min):
            return low, before
        behind = self.first_message(middle + 1, high)
        if behind < high and not self._is_there(self.entry(behind), log_min):
            return behind + 1, high
        first = self._first_but_fillers(before + 1, behind)
        return first, first

    def _first_but_fillers(self, begin: int, end: int) -> int:
        while begin < end:
            entries = self.entries(begin, min(_LOOKED_AT, end - begin))
            found = np.flatnonzero(entries["size"] != FILLER_SIZE)
            if len(found):
                return begin + int(found[0])
            begin += len(entries)
        return end

    def detach_before(self, log_min: int) -> list[tuple[Path, MappedFile | None]]:
        """Forget the files whose messages all lie before `log_min`.

        Return them as `MappedFileQueue.detach_before` does.
        """
        if self._writer is not None and self._written < self.max_offset and self.entry(self._written)[0] < log_min:
            # Unwritten, they would reach files that are not examined until the log's next file is deleted.
            with contextlib.suppress(StoreError):
                self._writer.write(self)
        if self.trimmed_to != log_min:
            self.trim(log_min)
        detached = self._files.detach_before(self.min_offset * ENTRY_BYTES)
        if detached:
            self._first = self._files.start // ENTRY_BYTES
            self.min_offset = max(self.min_offset, self._first)
        return detached

    def truncate(self, log_end: int, *, certainly: bool = False, durably: bool = False) -> int:
        """Drop the last entries whose messages end behind `log_end`; return their number.

        Args:
            certainly: also clear the bytes behind the last entry, where a loss of power may have left entries behind a
                hole.
            durably: the entries are removed from the disk when this returns; else by the next `sync`, if that has work.
        """
        end = self._sound_end(log_end)
        dropped = self.max_offset - end
        if dropped or (certainly and self._files.last_data(end * ENTRY_BYTES) > end * ENTRY_BYTES):
            self._drop_behind(end)
            self._files.zero_from(end * ENTRY_BYTES, durably=durably or end <= self._synced)
            self._synced = min(self._synced, end)
            self._confirmed = (-1, 0)
        return dropped

    def _drop_behind(self, end: int) -> None:
        """End the queue at `end`, in memory only."""
        unwritten = self.max_offset - self._written
        del self._tail[max(0, end - self._tail_from) * ENTRY_BYTES :]
        self.max_offset = end
        self._written, self._tail_from = min(self._written, end), min(self._tail_from, end)
        if self._writer is not None:
            self._writer.added -= (unwritten - (end - self._written)) * ENTRY_BYTES

    def truncate_in_memory(self, log_end: int) -> None:
        """Hide the entries that `truncate` would drop, for a read-only queue."""
        self._drop_behind(self._sound_end(log_end))

    def reaches(self, max_offset: int, log_end: int) -> bool:
        """Return True if `truncate` would leave all entries before `max_offset`."""
        return self.max_offset >= max_offset and self._sound_end(log_end) >= max_offset

    def _sound_end(self, log_end: int) -> int:
        """Return the offset after the last entry that is plausible.

        It points into the log, behind the entry before it; or it is a filler.
        """
        end = self.max_offset
        while end > self._first:
            physical_offset, size, _ = self.entry(end - 1)
            if size == FILLER_SIZE:
                break
            before = self.entry(end - 2)[0] if end - 1 > self._first else -1
            if size > 0 and before < physical_offset <= log_end - size:
                break
            end -= 1
        return end

    def confirmed_end(self, point: int) -> int:
        """Return `end_offset_at` for the high watermark, cached.

        The high watermark `point` never goes back, so work is done only after it has changed.
        """
        known, end = self._confirmed
        if known != point:
            end = self.end_offset_at(point, end)
            self._confirmed = point, end
        return end

    def end_offset_at(self, log_end: int, least: int = 0) -> int:
        """Return the offset after the last message that ends at or before `log_end`.

        `least` is a lower bound of the result. A filler or a damaged entry counts with the message before it.
        """
        low, high = max(least, self._first), self.max_offset
        while low < high:
            middle = probe = (low + high) // 2
            physical_offset, size, _ = self.entry(probe)
            if not 0 < size < FILLER_SIZE and (probe := self._last_message(low, middle)) >= low:
                physical_offset, size, _ = self.entry(probe)
            if probe < low or physical_offset + size <= log_end:
                low = middle + 1
            else:
                high = probe
        return low

    def _last_message(self, begin: int, stop: int) -> int:
        """Return the newest entry of begin..stop-1 that locates a message.

        Return an offset below `begin` if there is none.
        """
        while stop > begin:
            first = max(begin, stop - _LOOKED_AT)
            found = np.flatnonzero(_are_messages(self.entries(first, stop - first)))
            if len(found):
                return first + int(found[-1])
            stop = first
        return begin - 1

    def first_message(self, begin: int, end: int) -> int:
        """Return the oldest entry of begin..end-1 that locates a message; `end` if none."""
        while begin < end:
            entries = self.entries(begin, min(_LOOKED_AT, end - begin))
            found = np.flatnonzero(_are_messages(entries))
            if len(found):
                return begin + int(found[0])
            begin += len(entries)
        return end

    def messages(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return queue offset and physical offset of the messages in begin..end-1.

        Fillers and damaged entries are left out.
        """
        entries = self.entries(begin, end - begin)
        found = np.flatnonzero(_are_messages(entries))
        return list(zip((found + begin).tolist(), entries["physical_offset"][found].tolist(), strict=True))

    def extend(self, max_offset: int) -> None:
        """Append fillers until `max_offset` is the next message's offset.

        Do nothing if the queue has reached it.
        """
        if max_offset > self.max_offset:
            self.put(max_offset - 1, np.full(1, _FILLER, ENTRY))

    def end_physical(self) -> int:
        """Return the physical offset after the last message; 0 if there is none."""
        if self.max_offset == self._first:
            return 0
        physical_offset, size, _ = self.entry(self.max_offset - 1)
        return 0 if size == FILLER_SIZE else physical_offset + size

    def mark_synced(self, max_offset: int) -> None:
        """Record that the entries before `max_offset` and their files' names are on disk."""
        self._synced = max(self._synced, min(max_offset, self.max_offset))
        self._files.mark_names_synced(max_offset * ENTRY_BYTES)

    def start_sync(self) -> bool:
        """Write the entries that `sync` will bring to disk; return False if there are none.

        Raises:
            StoreFull, StoreFailed: they could not be written.
        """
        if self.max_offset <= self._synced or self._closed:
            return False
        if self._writer is not None:
            self._writer.write(self)
        self._files.start_sync(self._synced * ENTRY_BYTES, self._written * ENTRY_BYTES)
        return True

    def sync(self) -> list[Path]:
        """Wait until the entries from before `start_sync` are on disk.

        Return the folders to sync for the files' names.

        Raises:
            StoreFailed: the entries may not be on disk.
        """
        end = self._written
        if self._closed:
            return []
        self._files.sync_data(self._synced * ENTRY_BYTES, end * ENTRY_BYTES)
        self._synced = end
        return self._files.take_new_names()

    def close(self) -> None:
        """Close the files and drop the entries that are not in them yet."""
        if self._writer is None:
            self._files.close()
            return
        with self._writer.lock:
            if not self._closed:
                self._closed = True
                self._writer.forget(self, (self.max_offset - self._written) * ENTRY_BYTES)
            self._files.close()

    def _find_end(self) -> int:
        """Return the number of the first empty entry in the last file with entries.

        It takes few reads and does not map the file, because opening a store does this for each of its queues; see
        `queue_end`.
        """
        for start in reversed(self._files.starts):
            with self._files.reading(start) as read:
                found = first_empty(read, self._files.file_bytes // ENTRY_BYTES)
            if found > 0:
                return start // ENTRY_BYTES + found
        return self._first


def _are_messages(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return a mask of the entries that are neither fillers nor surely damaged."""
    sizes, places = entries["size"], entries["physical_offset"]
    found: npt.NDArray[np.bool_] = (
        (sizes >= MIN_RECORD_BYTES) & (sizes < FILLER_SIZE) & (places >= 0) & (places < _FARTHEST)
    )
    return found
