"""The commit log: all records of a store, one behind the other, in files of fixed size.

A record never crosses a file's end; what does not fit is preceded by a BLANK that fills the file. Bytes behind the
last record are zeros, and every append, of however many records, writes its first four bytes last: so a size of 0 is
the end of the log, and an append cut short by the death of the process has not happened, none of it.
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
from raymq.storage.files.health import Health
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.files.mapped_file_queue import MappedFileQueue
from raymq.storage.files.open_files import OpenFiles
from raymq.storage.files.preallocation import Preallocator
from raymq.storage.log.checking import Single
from raymq.storage.log.walk_start import WalkStart
from raymq.storage.records import record as layout
from raymq.storage.records.batch import Batch, stamp
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.record import Record

_ALLOCATE_STEP_BYTES: Final = 16 << 20
#: How many files are mapped at once, 64 GiB of the usual size; leases may keep more.
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
        health: Health,
        *,
        writable: bool,
        whole_to: int | None = None,
    ) -> None:
        """Look at the files; the end is set by recovery (`set_end`). `whole_to` as in `MappedFileQueue`."""
        self.folder = folder
        self.files = MappedFileQueue(
            folder,
            file_bytes,
            writable=writable,
            allocate_step_bytes=min(_ALLOCATE_STEP_BYTES, file_bytes),
            open_files=OpenFiles(_MAPPED_FILES) if writable else None,
            whole_to=whole_to,
            reserved=True,
        )
        self._store_host = int.from_bytes(store_host, "big", signed=True)
        self._store_host_bytes = store_host
        self.max_offset = self.files.start
        self.flushed_offset = self.files.start
        self.last_timestamp_ms = 0
        #: Set by recovery, kept by who writes checkpoints.
        self.walk_start = WalkStart(self.files.start)
        self.health = health
        self._ahead: Preallocator | None = None
        #: A small record that ends there or before fits into the newest file, where there are blocks for it.
        self._smooth_to = 0
        self._flushing = threading.Lock()

    @property
    def min_offset(self) -> int:
        """Where the first file begins."""
        return self.files.start

    @property
    def capacity(self) -> int:
        """The largest record that a file can hold."""
        return self.files.file_bytes - layout.BLANK.size

    def set_end(self, end: int, last_timestamp_ms: int) -> None:
        """Recovery's result: everything before `end` is there and on disk."""
        self.max_offset = self.flushed_offset = end
        self._smooth_to = 0
        self.last_timestamp_ms = last_timestamp_ms

    def prepare_ahead(self, *, clean: bool) -> None:
        """From now on a thread prepares the files behind the log's end, if none does; `clean` as in `Preallocator`.

        StoreBusy: the system has no thread to give; the next call tries again.
        """
        if self._ahead is not None:
            return
        ahead = Preallocator(self.files, clean=clean)
        ahead.start(self.max_offset)
        self._ahead = ahead

    def append(self, batch: Batch, queue_offsets: Int64s, store_timestamp_ms: int) -> Int64s:
        """Write a checked batch, no record of it larger than `capacity`; the physical offsets of its records.

        It goes into one file as a whole if a file can hold it, else into several, no record cut. A process that dies
        meanwhile has written all of it or nothing.

        Raises:
            StoreFull: no room on the disk. Where `max_offset` has grown nothing more may be appended: the batch needs
                several files, and with the next opening what is in the first ones is gone.
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

    def append_one(self, record: memoryview, late: int, queue_offset: int, store_timestamp_ms: int) -> int:
        """Write one checked record without NumPy, `late` as in `Single`; its physical offset. Raises as `append`."""
        size = len(record)
        physical_offset = self.max_offset
        if physical_offset + size <= self._smooth_to:
            file = self.files.extend(physical_offset)
        else:
            file = self._smooth_room_for(size)
            physical_offset = self.max_offset
        at = physical_offset - file.start
        failpoint("append.one_before_copy")
        view = file.view
        view[at + _SIZE_BYTES : at + size] = record[_SIZE_BYTES:]
        layout.QUEUE_AND_PHYSICAL_OFFSET.pack_into(view, at + layout.OFFSET_QUEUE_OFFSET, queue_offset, physical_offset)
        layout.STORE_TIMESTAMP_AND_HOST.pack_into(
            view, at + late + layout.OFFSET_STORE_TIMESTAMP, store_timestamp_ms, self._store_host_bytes
        )
        failpoint("append.one_before_size")
        view[at : at + _SIZE_BYTES] = record[:_SIZE_BYTES]
        self.max_offset = end = physical_offset + size
        if self._ahead is not None:
            self._ahead.advance(end)
        self.last_timestamp_ms = store_timestamp_ms
        return physical_offset

    def append_few(
        self, records: memoryview, singles: Sequence[Single], queue_offsets: Sequence[int], store_timestamp_ms: int
    ) -> list[int]:
        """`append` without NumPy of what one file can hold; the physical offsets of the records.

        Args:
            records: the bytes of all, one behind the other.
            singles: each of them, checked.
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
        pack_offsets, pack_time = layout.QUEUE_AND_PHYSICAL_OFFSET.pack_into, layout.STORE_TIMESTAMP_AND_HOST.pack_into
        host = self._store_host_bytes
        physical_offsets: list[int] = []
        for single, queue_offset in zip(singles, queue_offsets, strict=True):
            pack_offsets(view, at + layout.OFFSET_QUEUE_OFFSET, queue_offset, physical_offset)
            pack_time(view, at + single.late + layout.OFFSET_STORE_TIMESTAMP, store_timestamp_ms, host)
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
        """Write bytes of another log's at the end, into one file: whole records, or what fills the file up.

        A process that dies meanwhile has written all of them or nothing. Raises as `append`.

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
        """`_room_for` with blocks of the disk for it; from now on `_smooth_to` is of that file."""
        file = self._room_for(length)
        at = self.max_offset - file.start
        file.allocate(at, at + length)
        self._smooth_to = file.start + min(file.ready_to, file.size - layout.BLANK.size)
        return file

    def _room_for(self, length: int) -> MappedFile:
        """The file into which `length` bytes go at `max_offset`, after a BLANK and a new file if need be."""
        file = self.files.extend(self.max_offset)
        at = self.max_offset - file.start
        rest = file.size - at
        if length + layout.BLANK.size <= rest:
            return file
        failpoint("roll.before_file")
        # Whatever there may be no room for comes first: if it fails, the log has not changed.
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
        """Bytes of the mapping, which they keep alive; they must lie in one file."""
        file = self.files.file_at(physical_offset)
        at = physical_offset - file.start
        return file.view[at : at + length]

    def record(self, physical_offset: int, *, check_crc: bool = True) -> Record:
        """The record at that place; its body's CRC need not be compared.

        Raises:
            MessageExpired, MessageNotFound: below the log, beyond it, or not where a record begins.
            StoreCorrupt: there is one, but not as it was written.
        """
        if physical_offset < self.min_offset:
            raise MessageExpired(f"offset {physical_offset} is below the log's minimum {self.min_offset}")
        if physical_offset >= self.max_offset:
            raise MessageNotFound(f"offset {physical_offset} is beyond the log's end {self.max_offset}")
        file = self.files.file_at(physical_offset)
        at = physical_offset - file.start
        if not is_marked(file, at):
            raise MessageNotFound(f"no record begins at {physical_offset}")
        try:
            return layout.decode(file.view, at, check_crc=check_crc)
        except StoreCorrupt as error:
            raise StoreCorrupt(str(file.path), at, error.reason) from None

    def name_and_properties(self, physical_offset: int) -> tuple[bytes, bytes]:
        """Topic and stored properties of the record that claims to begin there; StoreCorrupt if it contradicts itself.

        Its body's CRC is not compared.
        """
        file = self.files.file_at(physical_offset)
        _, _, topic, begin, end = layout.locate(file.view, physical_offset - file.start, file.size, False)
        return bytes(file.view[topic : begin - layout.PROPERTIES_LENGTH.size]), bytes(file.view[begin:end])

    def walk(self, physical_offset: int) -> Iterator[Record]:
        """The records in log order from there on; raises as `record`."""
        position = max(physical_offset, self.min_offset)
        while position < self.max_offset:
            position = self.skip_blank(position)
            if position >= self.max_offset:
                return
            record = self.record(position)
            yield record
            position += record.size

    def is_marked(self, physical_offset: int) -> bool:
        """Whether a record claims to begin at that place, which may be any."""
        if not self.min_offset <= physical_offset < self.max_offset:
            return False
        file = self.files.file_at(physical_offset)
        return is_marked(file, physical_offset - file.start)

    def skip_blank(self, position: int) -> int:
        """`position`, or the next file's start if a BLANK is there."""
        file = self.files.file_at(position)
        at = position - file.start
        if file.size - at < layout.BLANK.size:
            return file.start + file.size
        size, magic = layout.BLANK.unpack_from(file.view, at)
        return file.start + file.size if magic == layout.MAGIC_BLANK and size == file.size - at else position

    def store_timestamp(self, physical_offset: int) -> int:
        """The store time of the record at that place, unchecked."""
        file = self.files.file_at(physical_offset)
        at = physical_offset - file.start
        sys_flag = int.from_bytes(file.view[at + layout.OFFSET_SYS_FLAG : at + layout.OFFSET_SYS_FLAG + 4], "big")
        late = at + (layout.IPV6_SHIFT if sys_flag & layout.SYS_FLAG_BORN_IPV6 else 0)
        return int(layout.STORE_TIMESTAMP.unpack_from(file.view, late + layout.OFFSET_STORE_TIMESTAMP)[0])

    def expirable(self, most: int) -> list[tuple[int, int]]:
        """At most `most` files that may go, oldest first: where the next one begins, and when its first record came.

        Not the newest file, nor what is not on disk yet. No file is older than its own first record, whatever the next
        one says: store times never go back, and have no checksum.
        """
        found: list[tuple[int, int]] = []
        for begin, following in pairwise(self.files.starts[: most + 1]):
            if following >= min(self.max_offset, self.flushed_offset + 1):
                break
            found.append((following, max(self.store_timestamp(begin), self.store_timestamp(following))))
        return found

    def expired_to(self, oldest_ms: int) -> int:
        """Where the first file begins that stays if all go whose messages were stored before `oldest_ms`."""
        starts = self.files.starts
        on_disk = bisect_right(starts, min(self.max_offset - 1, self.flushed_offset))
        following = range(1, on_disk)
        gone = bisect_left(following, oldest_ms, key=lambda number: self.store_timestamp(starts[number]))
        return starts[gone] if starts else self.min_offset

    def flush(self) -> None:
        """Bring to disk all that was appended before the call; from any thread, releases the GIL.

        Raises:
            StoreFailed: the disk failed, now or before.
        """
        end = self.max_offset
        # One at a time: the kernel tells of a failure once, and whoever comes later would take it for a success.
        with self._flushing:
            self.health.check()
            # Those who waited share what the one before them, or this one, has brought to disk.
            if end > self.flushed_offset:
                end = self.max_offset
                failpoint("flush.before_sync")
                try:
                    self.files.sync(self.flushed_offset, end)
                except StoreBusy:  # nothing was done, and all of it can be
                    raise
                except StoreError as error:
                    self.health.fail(error)
                    raise
                failpoint("flush.after_sync")
                length, self.flushed_offset = end - self.flushed_offset, end
                if self._ahead is not None:
                    self._ahead.flushed(length)

    def close(self) -> None:
        """Let go of the files; leases stay valid."""
        if self._ahead is not None:
            self._ahead.stop()
        self.files.close()


def is_marked(file: MappedFile, at: int) -> bool:
    """Whether a record claims to begin there: a record's magic, and its own physical offset."""
    if not 0 <= at <= file.size - layout.MIN_RECORD_BYTES:
        return False
    magic = layout.BLANK.unpack_from(file.view, at)[1]
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        return False
    _, physical_offset = layout.QUEUE_AND_PHYSICAL_OFFSET.unpack_from(file.view, at + layout.OFFSET_QUEUE_OFFSET)
    return bool(physical_offset == file.start + at)
