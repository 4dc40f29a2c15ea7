"""Read messages of a store: from a queue, by time, by key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

import numpy as np

from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import MessageNotFound, NotFoundError, OffsetOutOfRange, QueueNotFound, StoreCorrupt
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import FILLER_SIZE, ConsumeQueue, Entries
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.high_watermark import HighWatermark
from raymq.storage.log.lease import Lease
from raymq.storage.log.queue_repair import QueueRepair
from raymq.storage.log.read_barrier import ReadBarrier
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s, every
from raymq.storage.records.indexed_properties import tags_and_keys
from raymq.storage.records.record import Record
from raymq.storage.records.record_batch import BadRecord, parse

#: How many queue entries one filtered read examines.
SCAN_ENTRIES: Final = 16_000
#: From this many adjacent records on, NumPy checks them faster than a loop.
_VECTOR_FROM: Final = 48
#: From this many pieces on, if they are shorter than this on average, one copy is cheaper than sending them singly.
_MANY_RUNS: Final = 16
_SMALL_RUN_BYTES: Final = 1 << 14
#: One step of a search examines up to this many index entries in any thread, which takes about 1 ms, ...
_ENTRIES_A_STEP: Final = 512
#: ... or records of the log up to this many bytes, where examining a record counts as `_BYTES_A_RECORD`.
_BYTES_A_STEP: Final = 1 << 20
_BYTES_A_RECORD: Final = 16 << 10
#: How many entries one step of a search by time examines for a message.
_LOOKS_A_STEP: Final = 128


def _bounded(entries: Entries, max_bytes: int | None) -> int:
    """Return how many of the first records fit into `max_bytes`, at least one."""
    if max_bytes is None or len(entries) < 2:
        return len(entries)
    ends = np.cumsum(entries["size"], dtype=np.int64)
    return max(1, int(np.searchsorted(ends, max_bytes, "right")))


def check_offset(queue: ConsumeQueue, offset: int, end: int) -> None:
    """Raise OffsetOutOfRange unless `offset` is between the queue's minimum and `end`."""
    if not queue.min_offset <= offset <= end:
        raise OffsetOutOfRange(offset, queue.min_offset, end)


@dataclass(frozen=True, slots=True)
class _Run:
    """The records first..last (last not included) of a read, in one piece."""

    first: int
    last: int
    view: memoryview


class MessageReader:
    """Reads of records through the queues and the index; belongs to the store's writer."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        repair: QueueRepair,
        confirmed: HighWatermark,
        read_barrier: ReadBarrier,
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._repair = repair
        self._high_watermark = confirmed
        self._read_barrier = read_barrier

    def readable_end(self, queue: ConsumeQueue, *, written: bool) -> int:
        """Return where the queue ends for a reader.

        With `written`, which the broker's internal tasks use, return the end of the written entries.
        """
        return queue.max_offset if written else self._high_watermark.readable_end(queue)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int | None,
        tags_codes: Collection[int] | None,
        check_crc: bool,
        written: bool,
    ) -> Lease:
        """Read messages of a queue; see `Store.read`."""
        queue = self._dispatcher.get(topic, queue_id)
        end = self.readable_end(queue, written=written)
        check_offset(queue, offset, end)
        if offset == end or max_messages < 1:
            return Lease([], np.empty(0, np.int32), np.empty(0, np.int64), offset)
        if offset == end - 1 and not check_crc and (last := self._last(queue, offset, tags_codes)) is not None:
            return last
        if tags_codes is None:
            entries = self._fitting(queue, offset, min(max_messages, end - offset), max_bytes)
            next_offset = offset + len(entries)
            offsets = np.arange(offset, next_offset)
        else:
            entries, offsets, next_offset = self._chosen(queue, offset, end, max_messages, max_bytes, tags_codes)
        sizes = entries["size"].astype(np.int32)
        checked = not check_crc and self._in_newest_file(entries) and queue.is_checked(offset, next_offset)
        if checked and (view := self._one_view(entries, int(sizes.sum(dtype=np.int64)))) is not None:
            return Lease([view], sizes, offsets, next_offset)
        positions = entries["physical_offset"].astype(np.int64)
        wide = sizes.astype(np.int64)
        inside, problem = self._inside(positions, wide)
        runs = self._runs(positions[:inside], wide[:inside])
        if not checked:
            sound, damage = self._check(runs, positions, wide, offsets, topic, queue_id, check_crc)
            problem = damage or problem
            if tags_codes is None:
                queue.set_checked(offset, offset + sound)
        else:
            sound = inside
        if problem is not None:
            if sound == 0:
                if self._repair.repair(topic, queue_id, int(offsets[0])):
                    return self.read(topic, queue_id, offset, max_messages, max_bytes, tags_codes, check_crc, written)
                problem.queue_offset = int(offsets[0])
                raise problem
            runs = self._runs(positions[:sound], wide[:sound])
            next_offset = int(offsets[sound])
        return Lease([run.view for run in runs], sizes[:sound], offsets[:sound], next_offset)

    def _last(self, queue: ConsumeQueue, offset: int, tags_codes: Collection[int] | None) -> Lease | None:
        """Return the last message of a queue without NumPy, as fast consumers read it.

        Return None if the message has to be checked first. The result is empty if the tags code does not match.
        """
        position, size, code = queue.entry(offset)
        if tags_codes is not None and code not in tags_codes:
            return Lease([], np.empty(0, np.int32), np.empty(0, np.int64), offset + 1)
        end, file_bytes = self._log.max_offset, self._log.files.file_bytes
        if not (queue.is_checked(offset, offset + 1) and end - end % file_bytes <= position <= end - size):
            return None
        return Lease([self._log.view(position, size)], np.array([size], np.int32), np.array([offset]), offset + 1)

    def _in_newest_file(self, entries: Entries) -> bool:
        """Return True if these messages, in ascending order, lie in the log's newest file.

        Its pages are most likely still those that were written. The pages of older files may have been read from the
        disk again, so an earlier checksum proves nothing about them.
        """
        end = self._log.max_offset
        return len(entries) > 0 and int(entries["physical_offset"][0]) >= end - end % self._log.files.file_bytes

    @staticmethod
    def _fitting(queue: ConsumeQueue, offset: int, max_messages: int, max_bytes: int | None) -> Entries:
        """Return the entries from `offset` on that fit the limits, at least the first one."""
        if max_bytes is None:
            return queue.entries(offset, max_messages)
        max_bytes = max(0, max_bytes)
        most = min(max_messages, max_bytes // layout.MIN_RECORD_BYTES + 1)
        # A queue's records have similar sizes, so the first one gives an estimate of how many entries to read.
        count = min(most, max_bytes // max(layout.MIN_RECORD_BYTES, queue.entry(offset)[1]) + 2)
        entries = queue.entries(offset, count)
        take = _bounded(entries, max_bytes)
        if take == count < most:
            entries = queue.entries(offset, most)
            take = _bounded(entries, max_bytes)
        return entries[:take]

    @staticmethod
    def _chosen(
        queue: ConsumeQueue,
        offset: int,
        queue_end: int,
        max_messages: int,
        max_bytes: int | None,
        tags_codes: Collection[int],
    ) -> tuple[Entries, Int64s, int]:
        """Return the entries with these tags codes that fit the limits.

        Also return their offsets, and the offset where the next read begins.
        """
        entries = queue.entries(offset, min(max(max_messages, SCAN_ENTRIES), queue_end - offset))
        next_offset = offset + len(entries)
        chosen = np.flatnonzero(np.isin(entries["tags_code"], list(tags_codes)))
        entries = entries[chosen]
        take = _bounded(entries[:max_messages], max_bytes)
        if take < len(entries):
            next_offset = offset + int(chosen[take])
        return entries[:take], chosen[:take] + offset, next_offset

    def _one_view(self, entries: Entries, total: int) -> memoryview | None:
        """Return the bytes of consecutive, checked records as one view.

        Return None if other bytes lie between the records.

        Args:
            total: the sum of their sizes. It equals the range that they span only if nothing lies between them. They
                are in one file then, because a file ends with a BLANK.
        """
        if not len(entries):
            return None
        begin = int(entries["physical_offset"][0])
        end = int(entries["physical_offset"][-1]) + int(entries["size"][-1])
        if end - begin != total or not self._log.min_offset <= begin < end <= self._log.max_offset:
            return None
        return self._log.view(begin, total)

    def _inside(self, positions: Int64s, sizes: Int64s) -> tuple[int, StoreCorrupt | None]:
        """Return how many of the first entries point into the log.

        Also return the error of the next entry.
        """
        lost = sizes == FILLER_SIZE
        # A damaged entry may hold any value: a negative size would hide a position behind the log's end.
        outside = lost | (sizes < layout.MIN_RECORD_BYTES) | (positions < self._log.min_offset)
        outside |= positions > self._log.max_offset - sizes
        if not outside.any():
            return len(positions), None
        number = int(np.argmax(outside))
        position = int(positions[number])
        reason = "the message is lost" if lost[number] else f"the queue points at {position}, outside of the log"
        return number, StoreCorrupt(str(self._log.folder), position, reason)

    def _runs(self, positions: Int64s, sizes: Int64s) -> list[_Run]:
        """Return the records in as few pieces as they lie in the log.

        Many small pieces are copied into one.
        """
        if not len(positions):
            return []
        ends = positions + sizes
        file_bytes = self._log.files.file_bytes
        new = np.append(True, (positions[1:] != ends[:-1]) | (positions[1:] % file_bytes == 0))
        firsts = np.flatnonzero(new)
        lasts = np.append(firsts[1:], len(positions))
        begins, stops = positions[firsts], ends[lasts - 1]
        if len(firsts) >= _MANY_RUNS and int(sizes.sum()) < len(firsts) * _SMALL_RUN_BYTES:
            return [_Run(0, len(positions), memoryview(b"".join(self._views(begins, stops))))]
        return [
            _Run(first, last, view)
            for first, last, view in zip(firsts.tolist(), lasts.tolist(), self._views(begins, stops), strict=True)
        ]

    def _views(self, begins: Int64s, stops: Int64s) -> Iterator[memoryview]:
        """Yield the log's bytes from each begin to its stop.

        Each range lies in one file.
        """
        numbers = begins // self._log.files.file_bytes
        cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        for first, last in zip([0, *cuts], [*cuts, len(begins)], strict=True):
            file = self._log.files.file_at(int(begins[first]))
            starts = (begins[first:last] - file.start).tolist()
            yield from map(file.view.__getitem__, map(slice, starts, (stops[first:last] - file.start).tolist()))

    def _check(
        self,
        runs: list[_Run],
        positions: Int64s,
        sizes: Int64s,
        offsets: Int64s,
        topic: str,
        queue_id: int,
        check_crc: bool,
    ) -> tuple[int, StoreCorrupt | None]:
        """Return how many of the first records match their entries.

        Also return the error of the next record.
        """
        name = topic.encode()
        for run in runs:
            here = slice(run.first, run.last)
            if run.last - run.first >= _VECTOR_FROM and self._is_sound(
                run, positions[here], sizes[here], offsets[here], topic, queue_id, check_crc
            ):
                continue
            # The loop finds the first bad record, if any.
            for number, position, size, offset in zip(
                range(run.first, run.last),
                positions[here].tolist(),
                sizes[here].tolist(),
                offsets[here].tolist(),
                strict=True,
            ):
                problem = self._problem(position, size, offset, name, queue_id, check_crc)
                if problem is not None:
                    return number, problem
        return runs[-1].last if runs else 0, None

    @staticmethod
    def _is_sound(
        run: _Run,
        positions: Int64s,
        sizes: Int64s,
        offsets: Int64s,
        topic: str,
        queue_id: int,
        check_crc: bool,
    ) -> bool:
        try:
            batch = parse(run.view, sizes.astype(np.int32), check_crc=check_crc)
        except BadRecord:
            return False
        one_queue = len(batch.groups) == 1 and batch.groups[0].is_for_queue(topic, queue_id)
        headers = batch.headers
        return (
            one_queue and every(headers["physical_offset"] == positions) and every(headers["queue_offset"] == offsets)
        )

    def _problem(
        self, position: int, size: int, offset: int, topic: bytes, queue_id: int, check_crc: bool
    ) -> StoreCorrupt | None:
        """Return the error of the record at a position; None if it is right."""
        file = self._log.files.file_at(position)
        at = position - file.start
        reason = ""
        try:
            _, _, topic_at, properties_at, end = layout.locate(file.view, at, file.size, check_crc)
            stamped = layout.QUEUE_AND_PHYSICAL_OFFSET.unpack_from(file.view, at + layout.OFFSET_QUEUE_OFFSET)
            same_queue = (
                file.view[topic_at : properties_at - 2] == topic and layout.read_queue_id(file.view, at) == queue_id
            )
            if end - at != size or stamped != (offset, position) or not same_queue:
                reason = f"not the record of {topic.decode()} queue {queue_id} offset {offset}, as its entry says"
        except StoreCorrupt as error:
            reason = error.reason
        return StoreCorrupt(str(file.path), at, reason) if reason else None

    def appended_together(self, topic: str, queue_id: int, offset: int, most: int) -> int:
        """Count the records appended together; see `StoreReader.appended_together`."""
        log, queue = self._log, self._dispatcher.get(topic, queue_id)
        check_offset(queue, offset, queue.max_offset)
        entries = queue.entries(offset, most)
        if not len(entries):
            return 0
        places = entries["physical_offset"].astype(np.int64)
        ends = places[:-1] + entries["size"][:-1]
        in_next_file = ends + -ends % log.files.file_bytes
        apart = np.flatnonzero((places[1:] != ends) & (places[1:] != in_next_file))
        near = places[: int(apart[0]) + 1 if len(apart) else len(places)].tolist()
        return bisect_right(near, log.store_timestamp(near[0]), key=log.store_timestamp)

    def search_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Literal["lower", "upper"]
    ) -> Steps[int]:
        """Search a queue by store time; see `Store.search_time`."""
        queue = self._dispatcher.get(topic, queue_id)
        low, high = queue.min_offset, self._high_watermark.readable_end(queue)
        least_ms = timestamp_ms if boundary == "lower" else timestamp_ms + 1
        # An entry without a message counts with the next message.
        while low < high:
            middle = (low + high) // 2
            probe = queue.first_message(middle, high)
            while probe < high and not self._log.has_record_header(queue.entry(probe)[0]):
                stop = min(probe + _LOOKS_A_STEP, high)
                found = (offset for offset, place in queue.messages(probe, stop) if self._log.has_record_header(place))
                if (probe := next(found, stop)) < stop:
                    break
                yield None
                if self._dispatcher.get(topic, queue_id) is not queue:
                    raise QueueNotFound(f"queue {queue_id} of topic {topic} was deleted and created again")
                low = max(low, queue.min_offset)  # retention may have raised the minimum meanwhile
                probe = queue.first_message(max(stop, low), high)
            if probe < high and self._log.store_timestamp(queue.entry(probe)[0]) < least_ms:
                low = probe + 1
            else:
                high = middle
        low = max(low, queue.min_offset)
        return low if boundary == "lower" else max(queue.min_offset, low - 1)

    def record(self, physical_offset: int) -> Record:
        """Return the record at a physical offset; see `Store.read_at`."""
        confirmed = self._high_watermark.offset
        if physical_offset >= confirmed:
            raise MessageNotFound(f"offset {physical_offset} is beyond the log's confirmed end {confirmed}")
        record = self._log.record(physical_offset)
        if self._read_barrier.is_active and self._hides(record):
            raise MessageNotFound(f"the message at offset {physical_offset} is part of a commit that is under way")
        return record

    def _hides(self, record: Record) -> bool:
        """Return True if the read barrier of its queue hides the record."""
        return self._read_barrier.hides((record.topic, record.queue_id), record.queue_offset, record.physical_offset)

    def search(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_messages: int,
        max_bytes: int | None,
        *,
        written: bool,
    ) -> Steps[list[Record]]:
        """Search records by topic, key and time; see `Store.search`."""
        found: list[Record] = []
        seen: set[int] = set()
        log_end = self._log.max_offset if written else self._high_watermark.offset
        left_bytes = float("inf") if max_bytes is None else max_bytes
        entries = self._dispatcher.index.find(topic, key, begin_ms, end_ms)
        places: list[int | None] = []

        def look() -> None:
            places[:] = islice(entries, _ENTRIES_A_STEP)

        criteria = topic.encode(), key.encode(), begin_ms, end_ms
        work = 0
        while True:
            yield look
            if not places:
                return found
            for position in places:
                if position is None or position in seen or position >= log_end:
                    continue
                seen.add(position)
                record = self._matching(position, *criteria)
                if record is not None and (written or not self._read_barrier.is_active or not self._hides(record)):
                    left_bytes -= record.size
                    if found and left_bytes < 0:
                        return found
                    found.append(record)
                    if len(found) >= max_messages:
                        return found
                    work += record.size
                work += _BYTES_A_RECORD
                if work >= _BYTES_A_STEP:
                    work = 0
                    yield None

    def _matching(self, position: int, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Record | None:
        """Return the record at an indexed position if its key, topic and time match.

        Other records are not decoded: the index lists all records with the same hash.
        """
        if not self._log.has_record_header(position) or not begin_ms <= self._log.store_timestamp(position) <= end_ms:
            return None
        try:
            name, properties = self._log.name_and_properties(position)
            if name != topic or key not in properties or key not in tags_and_keys(properties)[1]:
                return None
            return self._log.record(position)
        except (NotFoundError, StoreCorrupt):
            return None
