"""The index of one queue: entry k says where in the commit log the queue's k-th message lies.

Entry: physical offset i8, size i4, tags code i8. Derived data: it can be rebuilt from the commit log. A *filler*
(offset 0, size 2**31 - 1) stands where no message is known: before the first one of a rebuilt queue, or for one that
was lost.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.ahead import Ahead
from raymq.storage.mapped_file import MappedFile
from raymq.storage.mapped_file_queue import MappedFileQueue, file_name
from raymq.storage.open_files import OpenFiles

ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_ENTRY = struct.Struct(">qiq")
ENTRY_BYTES: Final = _ENTRY.size
FILLER_SIZE: Final = 0x7FFFFFFF
_FILLER: Final = np.array((0, FILLER_SIZE, 0), ENTRY)
_ALLOCATE_STEP_BYTES = 64 * 1024
_FIRST_LOOK: Final = 200
#: Up to how many entries are read without mapping the file.
_FEW: Final = 64

Entries = npt.NDArray[np.void]


def make_entries(physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike) -> Entries:
    """Entries as they lie in the file."""
    entries: Entries = np.empty(np.shape(physical_offsets), ENTRY)
    entries["physical_offset"] = physical_offsets
    entries["size"] = sizes
    entries["tags_code"] = tags_codes
    return entries


class ConsumeQueue:
    """The entries of one queue; offsets count entries. Belongs to the store's writer; `sync` to any thread."""

    def __init__(
        self,
        folder: Path,
        file_entries: int,
        *,
        writable: bool,
        whole_to: int | None = None,
        open_files: OpenFiles | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """Look how far it reaches; further arguments as in `MappedFileQueue`, `whole_to` in entries."""
        self._files = MappedFileQueue(
            folder,
            file_entries * ENTRY_BYTES,
            writable=writable,
            allocate_step_bytes=_ALLOCATE_STEP_BYTES,
            whole_to=None if whole_to is None else whole_to * ENTRY_BYTES,
            open_files=open_files,
            ahead=ahead,
        )
        self._first = self._files.start // ENTRY_BYTES
        self.max_offset = self._find_end()
        self.min_offset = self._first
        #: The log's minimum for which `min_offset` is right.
        self.trimmed_to = 0
        self._synced = self._first
        self._fresh_from = self.max_offset
        self._seen = (0, 0)
        #: The entries before that one have blocks, or are written.
        self._room_to = 0

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """One more entry, for which there is room (`reserve`)."""
        position = self.max_offset * ENTRY_BYTES
        file = self._files.extend(position)
        at = position - file.start
        file.allocate(at, at + ENTRY_BYTES)  # There are blocks; but it is to hear how the file grows.
        _ENTRY.pack_into(file.view, at, physical_offset, size, tags_code)
        self.max_offset += 1

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

    def reserve(self, count: int) -> None:
        """Make sure that `count` more entries can be written; StoreFull if not."""
        if self.max_offset + count <= self._room_to:
            return
        position = self.max_offset * ENTRY_BYTES
        end = position + count * ENTRY_BYTES
        while position < end:
            file = self._files.extend(position)
            stop = min(end, file.start + file.size)
            file.allocate(position - file.start, stop - file.start)
            self._room_to = (file.start + file.allocated_to) // ENTRY_BYTES
            position = stop

    def put(self, offset: int, entries: Entries) -> None:
        """Write entries from `offset` on, over what is there or behind it; a gap before them gets fillers.

        On an empty queue the first offset decides where the first file begins.
        """
        if self.max_offset == self._first == 0 and offset > 0 and not self._files.starts:
            file_entries = self._files.file_bytes // ENTRY_BYTES
            self._first = self.max_offset = self.min_offset = offset - offset % file_entries
        if offset < self._first:
            entries = entries[self._first - offset :]
            offset = self._first
        known = offset + len(entries) <= self.max_offset
        if known and self.entries(offset, len(entries)).tobytes() == entries.tobytes():
            return  # As recovery finds most of them; what is not written need not be brought to disk.
        while offset > self.max_offset:
            room = self._files.file_bytes // ENTRY_BYTES - self.max_offset % (self._files.file_bytes // ENTRY_BYTES)
            self._write(self.max_offset, np.full(min(room, offset - self.max_offset), _FILLER, ENTRY))
        self._write(offset, entries)

    def _write(self, offset: int, entries: Entries) -> None:
        content = memoryview(entries.tobytes())
        position = offset * ENTRY_BYTES
        while content:
            file = self._files.extend(position)
            at = position - file.start
            part = content[: file.size - at]
            file.allocate(at, at + len(part))
            file.view[at : at + len(part)] = part
            content = content[len(part) :]
            position += len(part)
        self.max_offset = max(self.max_offset, offset + len(entries))
        self._synced = min(self._synced, offset)

    def entries(self, offset: int, count: int) -> Entries:
        """At most `count` entries from `offset` on, to be used at once: where they can they are those of the mapping.

        Args:
            offset: within min..max.
        """
        end = min(offset + count, self.max_offset)
        if end - offset <= _FEW:
            part = self._files.read(offset * ENTRY_BYTES, max(0, end - offset) * ENTRY_BYTES) if end > offset else b""
            if len(part) == (end - offset) * ENTRY_BYTES:
                return np.frombuffer(part, ENTRY)
        parts = [
            np.frombuffer(file.view, ENTRY, (stop - start) // ENTRY_BYTES, start)
            for file, start, stop in self._files.ranges(offset * ENTRY_BYTES, end * ENTRY_BYTES)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, ENTRY)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tags code of one entry."""
        return _ENTRY.unpack(self._files.read(offset * ENTRY_BYTES, ENTRY_BYTES))

    def place_of(self, offset: int) -> tuple[Path, int]:
        """The file that an entry is in, and where."""
        at = offset * ENTRY_BYTES
        start = at - at % self._files.file_bytes
        return self._files.folder / file_name(start), at - start

    def trim(self, log_min: int) -> None:
        """Set `min_offset` to the first entry whose message is at or behind `log_min`."""
        low, high = self._first, self.max_offset
        if low < high:
            physical_offset, size, _ = self.entry(low)
            if physical_offset >= log_min and size != FILLER_SIZE:
                high = low  # Nothing has expired: no damaged entry further on is asked.
        while low < high:
            middle = asked = (low + high) // 2
            physical_offset, size, _ = self.entry(asked)
            while size <= 0 and asked > low:  # A damaged entry says nothing; the one before it does.
                asked -= 1
                physical_offset, size, _ = self.entry(asked)
            if physical_offset < log_min or size == FILLER_SIZE:
                low = middle + 1
            else:
                high = asked
        self.min_offset = low
        self.trimmed_to = log_min

    def detach_before(self, log_min: int) -> list[tuple[Path, MappedFile | None]]:
        """Forget the files all of whose messages lie before `log_min`, as `MappedFileQueue.detach_before`."""
        end = self._files.start
        for start in self._files.starts[:-1]:
            following = start + self._files.file_bytes
            physical_offset, size, _ = self.entry(following // ENTRY_BYTES - 1)
            if size != FILLER_SIZE and physical_offset >= log_min:
                break
            end = following
        detached = self._files.detach_before(end)
        self._first = self._files.start // ENTRY_BYTES
        self.min_offset = max(self.min_offset, self._first)
        return detached

    def truncate(self, log_end: int, *, certainly: bool = False) -> int:
        """Drop the entries at the tail whose messages do not end at or before `log_end`; how many these were.

        Args:
            certainly: look behind the last entry too, where a loss of power may have left entries behind a hole.
        """
        end = self._sound_end(log_end)
        dropped = self.max_offset - end
        if dropped or (certainly and self._files.last_data(end * ENTRY_BYTES) > end * ENTRY_BYTES):
            self._files.zero_from(end * ENTRY_BYTES)
            self.max_offset = end
            self._room_to = 0
            self._synced = min(self._synced, end)
        return dropped

    def hide_behind(self, log_end: int) -> None:
        """`truncate` for a read-only queue: what lies behind is not shown."""
        self.max_offset = self._sound_end(log_end)

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
        """The entries before `max_offset` are on disk already."""
        self._synced = max(self._synced, min(max_offset, self.max_offset))

    def sync(self) -> None:
        """Wait until the entries of before the call are on disk."""
        end = self.max_offset
        if end > self._synced:
            self._files.sync(self._synced * ENTRY_BYTES, end * ENTRY_BYTES)
            self._synced = end

    def close(self) -> None:
        """Let go of the files."""
        self._files.close()

    def _find_end(self) -> int:
        """The number of the first empty entry: by halves within the last file that has an entry.

        Without mapping the file: most of many queues are short, and end within its first page.
        """
        for start in reversed(self._files.starts):
            first = start // ENTRY_BYTES
            low, high = first, first + self._files.file_bytes // ENTRY_BYTES
            page = np.frombuffer(self._files.read(start, _FIRST_LOOK * ENTRY_BYTES), ENTRY)
            empty = (page["physical_offset"] < 0) | (page["size"] <= 0)
            if empty.any():
                low = high = first + int(np.argmax(empty))
            while low < high:
                middle = (low + high) // 2
                physical_offset, size, _ = self.entry(middle)
                if physical_offset >= 0 and size > 0:
                    low = middle + 1
                else:
                    high = middle
            if low > first:
                return low
        return self._first
