"""The commit log: all records of a store in sequence, in files of fixed size.

A record never crosses the end of a file; if it does not fit, a BLANK fills the file before it. The bytes behind the
last record are zeros. Every append, of any number of records, writes its first four bytes last: a size of 0 therefore
marks the end of the log, and an append that a crash of the process interrupted leaves no records at all.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from raymq.storage.errors import MessageExpired, MessageNotFound, StoreBusy, StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.files.mapped_file_cache import MappedFileCache
from raymq.storage.files.mapped_file_queue import MappedFileQueue
from raymq.storage.files.preallocation import Preallocator
from raymq.storage.log.record_checker import CheckedRecord
from raymq.storage.log.recovery_start import RecoveryStart
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.record import Record
from raymq.storage.records.record_batch import Batch, stamp

_ALLOCATE_STEP_BYTES: Final = 16 << 20
#: How many files are mapped at once (64 GiB of the usual size); leases may keep more mapped.
_MAPPED_FILES: Final = 64
_SIZE_BYTES: Final = layout.OFFSET_MAGIC


class CommitLog:
    """The log's files and its end.

    Thread rule: appending and reading belong to the store's writer; `flush` may run in another thread.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        store_host: bytes,
        health: DiskHealth,
        *,
        writable: bool,
        whole_to: int | None = None,
    ) -> None:
        """Look up the files; recovery sets the end later with `set_end`.

        `whole_to` is as in `MappedFileQueue`.
        """
        self.folder = folder
        self.files = MappedFileQueue(
            folder,
            file_bytes,
            writable=writable,
            allocate_step_bytes=min(_ALLOCATE_STEP_BYTES, file_bytes),
            open_files=MappedFileCache(_MAPPED_FILES) if writable else None,
            whole_to=whole_to,
            reserved=True,
        )
        self._store_host = int.from_bytes(store_host, "big", signed=True)
        self._store_host_bytes = store_host
        self.max_offset = self.files.start
        self.flushed_offset = self.files.start
        self.last_timestamp_ms = 0
        #: Set by recovery, updated when checkpoints are written.
        self.recovery_start = RecoveryStart(self.files.start)
        self.health = health
        self._ahead: Preallocator | None = None
        #: A record that ends at or before this position fits into the newest file and has allocated blocks.
        self._smooth_to = 0
        self._flushing = threading.Lock()

    @property
    def min_offset(self) -> int:
        """Return the position where the first file begins."""
        return self.files.start

    @property
    def capacity(self) -> int:
        """Return the size of the largest record that a file can hold."""
        return self.files.file_bytes - layout.BLANK.size

    def set_end(self, end: int, last_timestamp_ms: int) -> None:
        """Set recovery's result: everything before `end` exists and is on disk."""
        self.max_offset = self.flushed_offset = end
        self._smooth_to = 0
        self.last_timestamp_ms = last_timestamp_ms

    def prepare_ahead(self, *, clean: bool) -> None:
        """Start the thread that prepares files behind the log's end, unless it runs already.

        `clean` is as in `Preallocator`. Raise StoreBusy if the system cannot provide a thread; the next call tries
        again.
        """
        if self._ahead is not None:
            return
        ahead = Preallocator(self.files, clean=clean)
        ahead.start(self.max_offset)
        self._ahead = ahead

    def append(self, batch: Batch, queue_offsets: Int64s, store_timestamp_ms: int) -> Int64s:
        """Append a checked batch and return the physical offsets of its records.

        No record of the batch may be larger than `capacity`. The batch goes into one file as a whole if a file can hold
        it, else into several files, without cutting a record. A crash of the process leaves either the whole batch or
        nothing.

        Raises:
            StoreFull: no room on the disk. If `max_offset` has grown, nothing more may be appended: the batch needs
                several files, and the next opening drops its records in the first ones.
        """
        capacity = self.capacity
        physical_offsets = np.empty(len(batch), np.int64)
        ends = batch.ends
        first, count, total = 0, len(batch), int(ends[-1])
        head: memoryview | None = None
        while first < count:
            done = int(batch.starts[first])
            file = self._room_for(total if total <= capacity else int(batch.sizes[first]))
            at = self.max_offset - file.start
            last = int(np.searchsorted(ends, done + capacity - at, "right")) if total > capacity else count
            length = int(ends[last - 1]) - done
            file.allocate(at, at + length)
            failpoint("append.before_copy")
            target = file.view[at : at + length]
            physical_offsets[first:last] = stamp(
                target, batch, first, last, queue_offsets, self.max_offset, store_timestamp_ms, self._store_host
            )
            if head is None:
                head = target
            else:
                target[:_SIZE_BYTES] = batch.records[done : done + _SIZE_BYTES]
            self.max_offset += length
            first = last
        failpoint("append.before_size")
        if head is not None:
            head[:_SIZE_BYTES] = batch.records[:_SIZE_BYTES]
        if self._ahead is not None:
            self._ahead.advance(self.max_offset)
        self.last_timestamp_ms = store_timestamp_ms
        return physical_offsets

    def append_few(
        self,
        records: memoryview,
        singles: Sequence[CheckedRecord],
        queue_offsets: Sequence[int],
        store_timestamp_ms: int,
    ) -> list[int]:
        """Do `append` without NumPy, for a few records that fit together into one file.

        Args:
            records: the bytes of all records, in sequence.
            singles: each of the records, checked.
        """
        length = len(records)
        physical_offset = self.max_offset
        if physical_offset + length <= self._smooth_to:
            file = self.files.extend(physical_offset)
        else:
            file = self._smooth_room_for(length)
            physical_offset = self.max_offset
        begin = at = physical_offset - file.start
        failpoint("append.few_before_copy")
        view = file.view
        view[begin + _SIZE_BYTES : begin + length] = records[_SIZE_BYTES:]
        host = self._store_host_bytes
        physical_offsets: list[int] = []
        for number, single in enumerate(singles):
            layout.QUEUE_AND_PHYSICAL_OFFSET.pack_into(
                view, at + layout.OFFSET_QUEUE_OFFSET, queue_offsets[number], physical_offset
            )
            layout.STORE_TIMESTAMP_AND_HOST.pack_into(
                view, at + single.late + layout.OFFSET_STORE_TIMESTAMP, store_timestamp_ms, host
            )
            physical_offsets.append(physical_offset)
            size = len(single.record)
            at += size
            physical_offset += size
        failpoint("append.few_before_size")
        view[begin : begin + _SIZE_BYTES] = records[:_SIZE_BYTES]
        self.max_offset = physical_offset
        if self._ahead is not None:
            self._ahead.advance(physical_offset)
        self.last_timestamp_ms = store_timestamp_ms
        return physical_offsets

    def append_raw(self, content: memoryview, last_timestamp_ms: int) -> None:
        """Append bytes of another log to one file.

        The bytes are whole records, or the BLANK that fills the file up. A crash of the process leaves either all of
        them or nothing. Raise as `append` does.

        Args:
            last_timestamp_ms: the store time of the newest record.
        """
        length = len(content)
        file = self.files.extend(self.max_offset)
        at = self.max_offset - file.start
        file.allocate(at, at + length)
        failpoint("follow.before_copy")
        file.view[at + _SIZE_BYTES : at + length] = content[_SIZE_BYTES:]
        failpoint("follow.before_size")
        file.view[at : at + min(_SIZE_BYTES, length)] = content[:_SIZE_BYTES]
        self.max_offset += length
        if self._ahead is not None:
            self._ahead.advance(self.max_offset)
        self.last_timestamp_ms = max(self.last_timestamp_ms, last_timestamp_ms)

    def _smooth_room_for(self, length: int) -> MappedFile:
        """Find room as `_room_for` does, allocate its blocks, and set `_smooth_to` for the file."""
        file = self._room_for(length)
        at = self.max_offset - file.start
        file.allocate(at, at + length)
        self._smooth_to = file.start + min(file.ready_to, file.size - layout.BLANK.size)
        return file

    def _room_for(self, length: int) -> MappedFile:
        """Return the file for the next `length` bytes, rolling to a new one if needed.

        A BLANK fills the rest of the old file then.
        """
        file = self.files.extend(self.max_offset)
        at = self.max_offset - file.start
        rest = file.size - at
        if length + layout.BLANK.size <= rest:
            return file
        failpoint("roll.before_file")
        # Allocate first: if the disk is full, the log has not changed.
        following = self.files.extend(self.max_offset + rest)
        following.allocate(0, length)
        file.allocate(at, at + layout.BLANK.size)
        failpoint("roll.before_blank")
        blank = layout.BLANK.pack(rest, layout.MAGIC_BLANK)
        file.view[at + _SIZE_BYTES : at + len(blank)] = blank[_SIZE_BYTES:]
        file.view[at : at + _SIZE_BYTES] = blank[:_SIZE_BYTES]
        self.max_offset += rest
        failpoint("roll.after_blank")
        return following

    def view(self, physical_offset: int, length: int) -> memoryview:
        """Return bytes of the mapping; they must lie in one file.

        The view keeps the mapping alive.
        """
        file = self.files.file_at(physical_offset)
        at = physical_offset - file.start
        return file.view[at : at + length]

    def record(self, physical_offset: int, *, check_crc: bool = True) -> Record:
        """Return the record at a physical offset; `check_crc` compares its body's CRC.

        Raises:
            MessageExpired, MessageNotFound: the offset is below the log, beyond it, or not where a record begins.
            StoreCorrupt: a record begins there, but it is damaged.
        """
        if physical_offset < self.min_offset:
            raise MessageExpired(f"offset {physical_offset} is below the log's minimum {self.min_offset}")
        if physical_offset >= self.max_offset:
            raise MessageNotFound(f"offset {physical_offset} is beyond the log's end {self.max_offset}")
        file = self.files.file_at(physical_offset)
        at = physical_offset - file.start
        if not has_record_header(file, at):
            raise MessageNotFound(f"no record begins at {physical_offset}")
        try:
            return layout.decode(file.view, at, check_crc=check_crc)
        except StoreCorrupt as error:
            raise StoreCorrupt(str(file.path), at, error.reason) from None

    def name_and_properties(self, physical_offset: int) -> tuple[bytes, bytes]:
        """Return the topic and the stored properties of the record at a physical offset.

        Its body's CRC is not compared. Raise StoreCorrupt if the record's fields contradict each other.
        """
        file = self.files.file_at(physical_offset)
        _, _, topic, begin, end = layout.locate(file.view, physical_offset - file.start, file.size, False)
        return bytes(file.view[topic : begin - layout.PROPERTIES_LENGTH.size]), bytes(file.view[begin:end])

    def walk(self, physical_offset: int) -> Iterator[Record]:
        """Yield the records from `physical_offset` on in log order; raise as `record`."""
        position = max(physical_offset, self.min_offset)
        while position < self.max_offset:
            position = self.skip_blank(position)
            if position >= self.max_offset:
                return
            record = self.record(position)
            yield record
            position += record.size

    def has_record_header(self, physical_offset: int) -> bool:
        """Return True if a record header with this physical offset is there.

        The offset may be any.
        """
        if not self.min_offset <= physical_offset < self.max_offset:
            return False
        file = self.files.file_at(physical_offset)
        return has_record_header(file, physical_offset - file.start)

    def skip_blank(self, position: int) -> int:
        """Return `position`, or the start of the next file if a BLANK is there."""
        file = self.files.file_at(position)
        at = position - file.start
        if file.size - at < layout.BLANK.size:
            return file.start + file.size
        size, magic = layout.BLANK.unpack_from(file.view, at)
        return file.start + file.size if magic == layout.MAGIC_BLANK and size == file.size - at else position

    def store_timestamp(self, physical_offset: int) -> int:
        """Return the store time of the record at a physical offset, without checks."""
        file = self.files.file_at(physical_offset)
        at = physical_offset - file.start
        sys_flag = int.from_bytes(file.view[at + layout.OFFSET_SYS_FLAG : at + layout.OFFSET_SYS_FLAG + 4], "big")
        late = at + (layout.IPV6_SHIFT if sys_flag & layout.SYS_FLAG_BORN_IPV6 else 0)
        return int(layout.STORE_TIMESTAMP.unpack_from(file.view, late + layout.OFFSET_STORE_TIMESTAMP)[0])

    def expirable(self, most: int) -> list[tuple[int, int]]:
        """Return at most `most` files that may be deleted, oldest first.

        Each is given by the position where the next file begins, and by the store time of the next file's first record.
        The newest file and files that are not on disk yet are excluded. Store times never decrease but have no
        checksum, so the store time of the file's own first record is used if it is later.
        """
        found: list[tuple[int, int]] = []
        for begin, following in pairwise(self.files.starts[: most + 1]):
            if following >= min(self.max_offset, self.flushed_offset + 1):
                break
            found.append((following, max(self.store_timestamp(begin), self.store_timestamp(following))))
        return found

    def expiry_offset(self, oldest_ms: int) -> int:
        """Return the start of the first file kept if messages stored before `oldest_ms` expire."""
        starts = self.files.starts
        on_disk = bisect_right(starts, min(self.max_offset - 1, self.flushed_offset))
        following = range(1, on_disk)
        expired = bisect_left(following, oldest_ms, key=lambda number: self.store_timestamp(starts[number]))
        return starts[expired] if starts else self.min_offset

    def flush(self) -> None:
        """Sync everything that was appended before the call; any thread, releases the GIL.

        Raises:
            StoreBusy: nothing was synced; another try may sync all.
            StoreFailed: the disk failed, now or before.
        """
        end = self.max_offset
        # One sync at a time: the kernel reports a failure once, so a concurrent sync would wrongly succeed.
        with self._flushing:
            self.health.check()
            # Threads that waited for the lock share one sync: it covers all that is appended by now.
            if end > self.flushed_offset:
                end = self.max_offset
                failpoint("flush.before_sync")
                try:
                    self.files.sync(self.flushed_offset, end)
                except StoreBusy:  # nothing was synced, and a retry can sync all
                    raise
                except StoreError as error:
                    self.health.fail(error)
                    raise
                failpoint("flush.after_sync")
                length, self.flushed_offset = end - self.flushed_offset, end
                if self._ahead is not None:
                    self._ahead.flushed(length)

    def close(self) -> None:
        """Close the files; leases stay valid."""
        if self._ahead is not None:
            self._ahead.stop()
        self.files.close()


def has_record_header(file: MappedFile, at: int) -> bool:
    """Return True if a record header is there: a record's magic and its physical offset."""
    if not 0 <= at <= file.size - layout.MIN_RECORD_BYTES:
        return False
    magic = layout.BLANK.unpack_from(file.view, at)[1]
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        return False
    _, physical_offset = layout.QUEUE_AND_PHYSICAL_OFFSET.unpack_from(file.view, at + layout.OFFSET_QUEUE_OFFSET)
    return bool(physical_offset == file.start + at)
