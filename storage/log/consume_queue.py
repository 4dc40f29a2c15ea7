"""The index of one queue: entry k says where in the commit log the queue's k-th message lies.

Entry: physical offset i8, size i4, tags code i8. Derived data: it can be rebuilt from the commit log. A *filler*
(offset 0, size 2**31 - 1) stands where no message is known: before the first one of a rebuilt queue, or for one that
was lost.

The newest entries are in memory, the others in files: `EntryWriter` brings them there.
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
from raymq.storage.files.mapped_file_queue import MappedFileQueue, file_name
from raymq.storage.files.open_files import OpenFiles
from raymq.storage.log.entry_writer import EntryWriter
from raymq.storage.log.queue_end import ENTRY, first_empty
from raymq.storage.records.record import MIN_RECORD_BYTES

_ENTRY = struct.Struct(">qiq")
ENTRY_BYTES: Final = _ENTRY.size
FILLER_SIZE: Final = 0x7FFFFFFF
#: Behind all places that a log may ever have.
_FARTHEST: Final = 1 << 56
#: So many entries are looked at together, where one after the other tells of no message.
_LOOKED_AT: Final = 4096
_FILLER: Final = np.array((0, FILLER_SIZE, 0), ENTRY)
#: Up to how many entries are read without mapping the file.
_FEW: Final = 64
#: So much of what is written stays in memory, and is cut to it when there is twice as much.
_KEPT_BYTES: Final = 1600 * ENTRY_BYTES
#: How many fillers are made at once.
_FILLED: Final = 65_536

Entries = npt.NDArray[np.void]


def make_entries(physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike) -> Entries:
    """Entries as they lie in the file."""
    entries: Entries = np.empty(np.shape(physical_offsets), ENTRY)
    entries["physical_offset"] = physical_offsets
    entries["size"] = sizes
    entries["tags_code"] = tags_codes
    return entries


class ConsumeQueue:
    """The entries of one queue; offsets count entries.

    Thread rule: it belongs to the store's writer, `sync` to any thread, and `write` and `forget_written` to whoever
    holds the lock of the `EntryWriter`. The writer alone puts entries behind the tail and moves `max_offset`, those
    alone take written ones from its front; each is one operation of the interpreter. So the writer finds an entry in
    the tail by its distance from the end.
    """

    def __init__(
        self,
        folder: Path,
        file_entries: int,
        *,
        writable: bool,
        whole_to: int | None = None,
        open_files: OpenFiles | None = None,
        writer: EntryWriter | None = None,
    ) -> None:
        """Look how far it reaches; further arguments as in `MappedFileQueue`, `whole_to` in entries.

        Args:
            writer: what writes new entries into the files; None = they stay in memory.
        """
        self._files = MappedFileQueue(
            folder,
            file_entries * ENTRY_BYTES,
            writable=writable,
            whole_to=None if whole_to is None else whole_to * ENTRY_BYTES,
            open_files=open_files,
        )
        self._first = self._files.start // ENTRY_BYTES
        #: The newest entries; those before `_written` are in files as well.
        self._tail = bytearray()
        self._writer = writer
        self.waiting = False
        self._closed = False
        self._tail_from = self._written = self.max_offset = self._find_end()
        self.min_offset = self._first
        #: The log's minimum for which `min_offset` is right.
        self.trimmed_to = 0
        self._synced = self._first
        self._fresh_from = self.max_offset
        self._seen = (0, 0)
        #: The point that `confirmed_end` was asked for last, and what it said.
        self._confirmed = (-1, 0)
        #: Readers see nothing from this offset on; None: there is no veil (see `veils`).
        self.veiled_from: int | None = None

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """One more entry."""
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
        """See `entry_writer.Entries`."""
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

    def forget_written(self) -> None:
        """See `entry_writer.Entries`."""
        self._forget(len(self._tail))

    def _forget(self, most: int) -> None:
        """Drop the first `most` bytes of the tail, as far as they are written."""
        count = min(most // ENTRY_BYTES, self._written - self._tail_from)
        self._tail_from += count
        del self._tail[: count * ENTRY_BYTES]

    def distrust(self) -> None:
        """No message that is there now counts as checked; those that come count as such."""
        self._fresh_from = self.max_offset
        self._seen = (0, 0)

    def is_checked(self, offset: int, end: int) -> bool:
        """Whether the messages offset..end (end not included) were found to be what their entries say since the store
        was opened: when they were appended, or by a read.
        """
        return offset >= self._fresh_from or (self._seen[0] <= offset and end <= self._seen[1])

    def set_checked(self, offset: int, end: int) -> None:
        """A read has looked at them. One stretch is remembered besides the newest messages: readers go in order."""
        begin, stop = self._seen
        if offset <= stop and begin <= end:
            offset, end = min(begin, offset), max(stop, end)
        if end >= self._fresh_from:
            self._fresh_from = min(self._fresh_from, offset)
        else:
            self._seen = offset, end

    def put(self, offset: int, entries: Entries) -> None:
        """Write entries from `offset` on, over what is there or behind it; a gap before them gets fillers.

        On an empty queue the first offset decides where the first file begins.
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
            # Recovery finds most of them as they are; what is not written need not be brought to disk.
            if self.entries(offset, len(known)).tobytes() != known.tobytes():
                self._overwrite(offset, known)
            entries, offset = entries[len(known) :], offset + len(known)
        while offset > self.max_offset and len(entries):
            if self._writer is not None and offset - self.max_offset > _FILLED:
                self._writer.write(self)
            self._append_many(np.full(min(_FILLED, offset - self.max_offset), _FILLER, ENTRY))
        self._append_many(entries)

    def _overwrite(self, offset: int, entries: Entries) -> None:
        """Replace entries that are there, in the files and in memory."""
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
        """At most `count` entries from `offset` on, to be used at once: where they can they are those of the mapping.

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
                break  # Else just now some were written and dropped.
        if split == offset:
            return np.frombuffer(newest, ENTRY)
        older = self._in_files(offset, split)
        return np.concatenate([older, np.frombuffer(newest, ENTRY)]) if newest else older

    def _in_memory(self, offset: int, end: int) -> bytearray:
        """The bytes of the entries offset..end, `end` at most `max_offset`, without those that are not in memory."""
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
        """Physical offset, size and tags code of one entry."""
        part = self._in_memory(offset, offset + 1)
        return _ENTRY.unpack(part) if part else self._entry_in_file(offset)

    def _entry_in_file(self, offset: int) -> tuple[int, int, int]:
        return _ENTRY.unpack(self._files.read(offset * ENTRY_BYTES, ENTRY_BYTES))

    def place_of(self, offset: int) -> tuple[Path, int]:
        """The file that an entry is in, and where."""
        at = offset * ENTRY_BYTES
        start = at - at % self._files.file_bytes
        return self._files.folder / file_name(start), at - start

    def trim(self, log_min: int) -> None:
        """Set `min_offset` to the first entry whose message is at or behind `log_min`, by halves.

        A damaged entry says nothing of its message, and a filler nothing of those before it: their neighbours do. What
        may be damaged alone counts as there, and is made anew by the read that meets it.
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
        """Whether an entry's message is at or behind `log_min`; None if the entry does not say so."""
        physical_offset, size, _ = entry
        if not 0 <= physical_offset < _FARTHEST or not MIN_RECORD_BYTES <= size < FILLER_SIZE:
            return None
        return physical_offset >= log_min

    def _by_neighbours(self, low: int, middle: int, high: int, log_min: int) -> tuple[int, int]:
        """Where within low..high to look on, as the entry in the middle says nothing."""
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
        """Forget the files all of whose messages lie before `log_min`, as `MappedFileQueue.detach_before`."""
        if self._writer is not None and self._written < self.max_offset and self.entry(self._written)[0] < log_min:
            # Else they would come into files that nobody looks at until the log loses its next one.
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
        """Drop the entries at the tail whose messages do not end at or before `log_end`; how many these were.

        Args:
            certainly: look behind the last entry too, where a loss of power may have left entries behind a hole.
            durably: they are gone from the disk when this returns; else with the next `sync`, if that has work.
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
        """Let the queue end there, in memory."""
        unwritten = self.max_offset - self._written
        del self._tail[max(0, end - self._tail_from) * ENTRY_BYTES :]
        self.max_offset = end
        self._written, self._tail_from = min(self._written, end), min(self._tail_from, end)
        if self._writer is not None:
            self._writer.added -= (unwritten - (end - self._written)) * ENTRY_BYTES

    def hide_behind(self, log_end: int) -> None:
        """`truncate` for a read-only queue: what lies behind is not shown."""
        self._drop_behind(self._sound_end(log_end))

    def reaches(self, max_offset: int, log_end: int) -> bool:
        """Whether the entries at its tail are such that none before `max_offset` would be dropped."""
        return self.max_offset >= max_offset and self._sound_end(log_end) >= max_offset

    def _sound_end(self, log_end: int) -> int:
        """One past the last entry that points into the log, and behind the entry before it."""
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
        """`reach` of a point of the log that only ever goes forward: costs something only when it has."""
        known, end = self._confirmed
        if known != point:
            end = self.reach(point, end)
            self._confirmed = point, end
        return end

    def reach(self, log_end: int, least: int = 0) -> int:
        """The offset behind the last message that ends at or before `log_end`; it is surely not below `least`.

        What is no message (a filler, or a damaged entry) counts with the one before it.
        """
        low, high = max(least, self._first), self.max_offset
        while low < high:
            middle = asked = (low + high) // 2
            physical_offset, size, _ = self.entry(asked)
            if not 0 < size < FILLER_SIZE and (asked := self._last_message(low, middle)) >= low:
                physical_offset, size, _ = self.entry(asked)
            if asked < low or physical_offset + size <= log_end:
                low = middle + 1
            else:
                high = asked
        return low

    def _last_message(self, begin: int, stop: int) -> int:
        """The newest entry of begin..stop-1 that tells of a message; below `begin` if there is none."""
        while stop > begin:
            first = max(begin, stop - _LOOKED_AT)
            found = np.flatnonzero(_are_messages(self.entries(first, stop - first)))
            if len(found):
                return first + int(found[-1])
            stop = first
        return begin - 1

    def first_message(self, begin: int, end: int) -> int:
        """The oldest entry of begin..end-1 that tells of a message; `end` if there is none."""
        while begin < end:
            entries = self.entries(begin, min(_LOOKED_AT, end - begin))
            found = np.flatnonzero(_are_messages(entries))
            if len(found):
                return begin + int(found[0])
            begin += len(entries)
        return end

    def messages(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Offset and place in the log of those entries of begin..end-1 that tell of messages."""
        entries = self.entries(begin, end - begin)
        found = np.flatnonzero(_are_messages(entries))
        return list(zip((found + begin).tolist(), entries["physical_offset"][found].tolist(), strict=True))

    def extend(self, max_offset: int) -> None:
        """Make `max_offset` the next message's offset, behind fillers, if the queue has not reached it."""
        if max_offset > self.max_offset:
            self.put(max_offset - 1, np.full(1, _FILLER, ENTRY))

    def end_physical(self) -> int:
        """One past the last message's end in the commit log; 0 if there is none."""
        if self.max_offset == self._first:
            return 0
        physical_offset, size, _ = self.entry(self.max_offset - 1)
        return 0 if size == FILLER_SIZE else physical_offset + size

    def trust(self, max_offset: int) -> None:
        """The entries before `max_offset` are on disk already, and the names of their files."""
        self._synced = max(self._synced, min(max_offset, self.max_offset))
        self._files.trust_names(max_offset * ENTRY_BYTES)

    def start_sync(self) -> bool:
        """Write the entries of before the call, for `sync` to bring them to disk; whether there are any.

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
        """Wait until the entries of before `start_sync` are on disk; the folders to be synced for their names.

        Raises:
            StoreFailed: they may not be.
        """
        end = self._written
        if self._closed:
            return []
        self._files.sync_data(self._synced * ENTRY_BYTES, end * ENTRY_BYTES)
        self._synced = end
        return self._files.take_new_names()

    def close(self) -> None:
        """Let go of the files, and of what is not in them yet."""
        if self._writer is None:
            self._files.close()
            return
        with self._writer.lock:
            if not self._closed:
                self._closed = True
                self._writer.forget(self, (self.max_offset - self._written) * ENTRY_BYTES)
            self._files.close()

    def _find_end(self) -> int:
        """The number of the first empty entry: by halves within the last file that has an entry.

        Without mapping the file, and with few reads of it: the start of a store does this for each of its queues. Most
        of many queues are short, and end within its first page, or not far behind.
        """
        for start in reversed(self._files.starts):
            with self._files.reading(start) as read:
                found = first_empty(read, self._files.file_bytes // ENTRY_BYTES)
            if found > 0:
                return start // ENTRY_BYTES + found
        return self._first


def _are_messages(entries: Entries) -> npt.NDArray[np.bool_]:
    """Which entries are neither fillers nor surely damaged."""
    sizes, places = entries["size"], entries["physical_offset"]
    found: npt.NDArray[np.bool_] = (
        (sizes >= MIN_RECORD_BYTES) & (sizes < FILLER_SIZE) & (places >= 0) & (places < _FARTHEST)
    )
    return found
