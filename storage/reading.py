"""Reads of a store: from a queue, by time, by key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

import numpy as np

from raymq.storage import record as layout
from raymq.storage.commit_log import CommitLog
from raymq.storage.consume_queue import FILLER_SIZE, ConsumeQueue, Entries
from raymq.storage.dispatch import Dispatcher
from raymq.storage.errors import NotFoundError, OffsetOutOfRange, StoreCorrupt
from raymq.storage.lease import Lease
from raymq.storage.record import Record
from raymq.storage.record_batch import BadRecord, keys_of, parse

#: Queue entries that one filtered read looks at.
SCAN_ENTRIES: Final = 16_000
#: From how many adjacent records on NumPy checks them faster than a loop.
_VECTOR_FROM: Final = 48


class Reader:
    """Finds records through the queues and the index. Belongs to the store's writer."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int | None,
        tags_codes: Collection[int] | None,
        check_crc: bool,
    ) -> Lease:
        """See `Store.read`."""
        queue = self._dispatcher.get(topic, queue_id)
        self.check_offset(queue, offset)
        if offset == queue.max_offset or max_messages < 1:
            return Lease([], np.empty(0, np.int32), np.empty(0, np.int64), offset)
        scanned = max_messages if tags_codes is None else max(max_messages, SCAN_ENTRIES)
        entries = queue.entries(offset, scanned)
        next_offset = offset + len(entries)
        offsets = np.arange(offset, next_offset)
        if tags_codes is not None:
            chosen = np.flatnonzero(np.isin(entries["tags_code"], list(tags_codes)))
            entries, offsets = entries[chosen], offsets[chosen]
        take = self._fitting(entries, max_messages, max_bytes)
        if take < len(entries):
            next_offset = int(offsets[take])
        sound, problem = self._check(entries[:take], topic, queue_id, check_crc)
        if problem is not None:
            if sound == 0:
                raise problem
            take, next_offset = sound, int(offsets[sound])
        physical_offsets = entries["physical_offset"][:take].tolist()
        sizes = entries["size"][:take].astype(np.int32)
        return Lease(self._parts(physical_offsets, sizes.tolist()), sizes, offsets[:take], next_offset)

    @staticmethod
    def check_offset(queue: ConsumeQueue, offset: int) -> None:
        """OffsetOutOfRange unless it is within min..max."""
        if not queue.min_offset <= offset <= queue.max_offset:
            raise OffsetOutOfRange(offset, queue.min_offset, queue.max_offset)

    @staticmethod
    def _fitting(entries: Entries, max_messages: int, max_bytes: int | None) -> int:
        take = min(len(entries), max_messages)
        if max_bytes is not None and take > 1:
            ends = np.cumsum(entries["size"][:take], dtype=np.int64)
            take = max(1, int(np.searchsorted(ends, max_bytes, "right")))
        return take

    def _runs(self, physical_offsets: list[int], sizes: list[int]) -> list[tuple[int, int, int]]:
        """Adjacent records of one file: first record's number, position, length."""
        runs: list[tuple[int, int, int]] = []
        file_bytes = self._log.files.file_bytes
        expected = -1
        for number, (position, size) in enumerate(zip(physical_offsets, sizes, strict=True)):
            if position == expected and position % file_bytes:
                first, start, length = runs[-1]
                runs[-1] = (first, start, length + size)
            else:
                runs.append((number, position, size))
            expected = position + size
        return runs

    def _parts(self, physical_offsets: list[int], sizes: list[int]) -> list[memoryview]:
        return [self._log.view(start, length) for _, start, length in self._runs(physical_offsets, sizes)]

    def _check(self, entries: Entries, topic: str, queue_id: int, check_crc: bool) -> tuple[int, StoreCorrupt | None]:
        """How many records from the first on are what they should be, and what is wrong with the next one."""
        physical_offsets, sizes = entries["physical_offset"].tolist(), entries["size"].tolist()
        name = topic.encode()
        for number, (position, size) in enumerate(zip(physical_offsets, sizes, strict=True)):
            lost = size == FILLER_SIZE
            if lost or not self._log.min_offset <= position <= self._log.max_offset - size:
                reason = "the message is lost" if lost else f"the queue points at {position}, outside of the log"
                problem = StoreCorrupt(str(self._log.folder), position, reason)
                return number, self._check(entries[:number], topic, queue_id, check_crc)[1] or problem
        for first, start, length in self._runs(physical_offsets, sizes):
            last = first
            total = 0
            while last < len(sizes) and total < length:
                total += sizes[last]
                last += 1
            if last - first >= _VECTOR_FROM:
                try:
                    batch = parse(
                        self._log.view(start, length), entries["size"][first:last].astype(np.int32), check_crc=check_crc
                    )
                    one = len(batch.groups) == 1
                    if (
                        one
                        and batch.groups[0].is_of(topic, queue_id)
                        and (batch.physical_offsets == entries["physical_offset"][first:last]).all()
                    ):
                        continue
                except BadRecord:
                    pass  # Which one is the first bad one, the loop tells.
            for number in range(first, last):
                problem_ = self._problem(physical_offsets[number], sizes[number], name, queue_id, check_crc)
                if problem_ is not None:
                    return number, problem_
        return len(sizes), None

    def _problem(self, position: int, size: int, topic: bytes, queue_id: int, check_crc: bool) -> StoreCorrupt | None:
        """What is wrong with the record there."""
        file = self._log.files.file_at(position)
        at = position - file.start
        reason = ""
        try:
            _, _, topic_at, properties_at, end = layout.locate(file.view, at, file.size, check_crc)
            stamped = layout.QUEUE_AND_PHYSICAL_OFFSET.unpack_from(file.view, at + layout.OFFSET_QUEUE_OFFSET)[1]
            same_queue = file.view[topic_at : properties_at - 2] == topic and layout.queue_of(file.view, at) == queue_id
            if end - at != size or stamped != position or not same_queue:
                reason = "not the record that the queue points at"
        except StoreCorrupt as error:
            reason = error.reason
        return StoreCorrupt(str(file.path), at, reason) if reason else None

    def offset_at_time(self, queue: ConsumeQueue, timestamp_ms: int) -> int:
        """See `Store.offset_at_time`."""

        def stored_ms(offset: int) -> int:
            for at in range(offset, queue.max_offset):
                position, size, _ = queue.entry(at)
                if size != FILLER_SIZE:
                    return self._log.store_timestamp(position)
            return 1 << 62

        offsets = range(queue.min_offset, queue.max_offset)
        return queue.min_offset + bisect_left(offsets, timestamp_ms, key=stored_ms)

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int) -> list[Record]:
        """See `Store.query`."""
        found: list[Record] = []
        seen: set[int] = set()
        for position in self._dispatcher.index.find(topic, key, begin_ms, end_ms):
            if len(found) >= max_messages:
                break
            if position in seen:
                continue
            seen.add(position)
            try:
                record = self._log.record(position)
            except (NotFoundError, StoreCorrupt):
                continue
            matches = record.topic == topic and key.encode() in keys_of(self._log.properties(position))
            if matches and begin_ms <= record.store_timestamp_ms <= end_ms:
                found.append(record)
        return found
