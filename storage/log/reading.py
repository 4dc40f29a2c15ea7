"""Reads of a store: from a queue, by time, by key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

import numpy as np

from raymq.storage.errors import MessageNotFound, NotFoundError, OffsetOutOfRange, QueueNotFound, StoreCorrupt
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.confirm_point import ConfirmPoint
from raymq.storage.log.consume_queue import FILLER_SIZE, ConsumeQueue, Entries
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.lease import Lease
from raymq.storage.log.queue_repair import QueueRepair
from raymq.storage.log.veils import Veils
from raymq.storage.records import record as layout
from raymq.storage.records.batch import BadRecord, parse
from raymq.storage.records.byte_rows import Int64s, every
from raymq.storage.records.indexed_properties import tags_and_keys
from raymq.storage.records.record import Record
from raymq.storage.steps import Steps

#: Queue entries that one filtered read looks at.
SCAN_ENTRIES: Final = 16_000
#: From how many adjacent records on NumPy checks them faster than a loop.
_VECTOR_FROM: Final = 48
#: From how many pieces on, and up to which length of them, records are copied together: cheaper than to send them so.
_MANY_RUNS: Final = 16
_SMALL_RUN_BYTES: Final = 1 << 14
#: A step of a search looks at so many entries of the index in any thread, which takes about 1 ms, ...
_ENTRIES_A_STEP: Final = 512
#: ... or at records of the log until so much is done: looking at one counts as so many bytes.
_BYTES_A_STEP: Final = 1 << 20
_BYTES_A_RECORD: Final = 16 << 10
#: At how many places a step of a search by time looks for a message.
_LOOKS_A_STEP: Final = 128


def _bounded(entries: Entries, max_bytes: int | None) -> int:
    """How many records from the first on have together at most `max_bytes`, at least one."""
    if max_bytes is None or len(entries) < 2:
        return len(entries)
    ends = np.cumsum(entries["size"], dtype=np.int64)
    return max(1, int(np.searchsorted(ends, max_bytes, "right")))


def check_offset(queue: ConsumeQueue, offset: int, end: int) -> None:
    """OffsetOutOfRange unless it is within the queue's minimum and `end`."""
    if not queue.min_offset <= offset <= end:
        raise OffsetOutOfRange(offset, queue.min_offset, end)


@dataclass(frozen=True, slots=True)
class _Run:
    """Records first..last (last not included) of a read in one piece."""

    first: int
    last: int
    view: memoryview


class Reader:
    """Finds records through the queues and the index. Belongs to the store's writer."""

    def __init__(
        self, log: CommitLog, dispatcher: Dispatcher, repair: QueueRepair, confirmed: ConfirmPoint, veils: Veils
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._repair = repair
        self._confirmed = confirmed
        self._veils = veils

    def end_of(self, queue: ConsumeQueue, *, written: bool) -> int:
        """Where the queue ends for a reader, or with `written` for the broker's own duties."""
        return queue.max_offset if written else self._confirmed.end_of(queue)

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
        """See `Store.read`."""
        queue = self._dispatcher.get(topic, queue_id)
        end = self.end_of(queue, written=written)
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
        """The last message of a queue, as who keeps up reads it: without NumPy; None if it has to be looked at."""
        position, size, code = queue.entry(offset)
        if tags_codes is not None and code not in tags_codes:
            return Lease([], np.empty(0, np.int32), np.empty(0, np.int64), offset + 1)
        end, file_bytes = self._log.max_offset, self._log.files.file_bytes
        if not (queue.is_checked(offset, offset + 1) and end - end % file_bytes <= position <= end - size):
            return None
        return Lease([self._log.view(position, size)], np.array([size], np.int32), np.array([offset]), offset + 1)

    def _in_newest_file(self, entries: Entries) -> bool:
        """Whether these messages, ascending, lie in the log's newest file.

        Its pages are most likely those that were written. Those of older files may have been read from the disk again,
        and a checksum of before says nothing about them.
        """
        end = self._log.max_offset
        return len(entries) > 0 and int(entries["physical_offset"][0]) >= end - end % self._log.files.file_bytes

    @staticmethod
    def _fitting(queue: ConsumeQueue, offset: int, max_messages: int, max_bytes: int | None) -> Entries:
        """The entries from `offset` on whose records are within the bounds, the first one in any case."""
        if max_bytes is None:
            return queue.entries(offset, max_messages)
        max_bytes = max(0, max_bytes)
        most = min(max_messages, max_bytes // layout.MIN_RECORD_BYTES + 1)
        # Records of a queue are about equally long: the first one tells how many may fit, and only those are looked at.
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
        """The entries of these codes within the bounds, their offsets, and where the next read begins."""
        entries = queue.entries(offset, min(max(max_messages, SCAN_ENTRIES), queue_end - offset))
        next_offset = offset + len(entries)
        chosen = np.flatnonzero(np.isin(entries["tags_code"], list(tags_codes)))
        entries = entries[chosen]
        take = _bounded(entries[:max_messages], max_bytes)
        if take < len(entries):
            next_offset = offset + int(chosen[take])
        return entries[:take], chosen[:take] + offset, next_offset

    def _one_view(self, entries: Entries, total: int) -> memoryview | None:
        """The bytes of sound, ascending records if they lie one behind the other; None if not.

        Args:
            total: the sum of their sizes. What they span is the same only where nothing lies between them, so they
                are in one file too: a file ends with a BLANK.
        """
        if not len(entries):
            return None
        begin = int(entries["physical_offset"][0])
        end = int(entries["physical_offset"][-1]) + int(entries["size"][-1])
        if end - begin != total or not self._log.min_offset <= begin < end <= self._log.max_offset:
            return None
        return self._log.view(begin, total)

    def _inside(self, positions: Int64s, sizes: Int64s) -> tuple[int, StoreCorrupt | None]:
        """How many entries from the first on point into the log, and what is wrong with the next one."""
        lost = sizes == FILLER_SIZE
        # A damaged entry may say anything: a size below zero would let a place behind the log's end pass.
        outside = lost | (sizes < layout.MIN_RECORD_BYTES) | (positions < self._log.min_offset)
        outside |= positions > self._log.max_offset - sizes
        if not outside.any():
            return len(positions), None
        number = int(np.argmax(outside))
        position = int(positions[number])
        reason = "the message is lost" if lost[number] else f"the queue points at {position}, outside of the log"
        return number, StoreCorrupt(str(self._log.folder), position, reason)

    def _runs(self, positions: Int64s, sizes: Int64s) -> list[_Run]:
        """The records in as few pieces as they lie in the log; if these are many and small, copied into one."""
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
        """The bytes of the log from each begin to its stop, of one file each."""
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
        """How many records from the first on are what they should be, and what is wrong with the next one."""
        name = topic.encode()
        for run in runs:
            here = slice(run.first, run.last)
            if run.last - run.first >= _VECTOR_FROM and self._is_sound(
                run, positions[here], sizes[here], offsets[here], topic, queue_id, check_crc
            ):
                continue
            # Which one is the first bad one, if any, the loop tells.
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
        one_queue = len(batch.groups) == 1 and batch.groups[0].is_of(topic, queue_id)
        headers = batch.headers
        return (
            one_queue and every(headers["physical_offset"] == positions) and every(headers["queue_offset"] == offsets)
        )

    def _problem(
        self, position: int, size: int, offset: int, topic: bytes, queue_id: int, check_crc: bool
    ) -> StoreCorrupt | None:
        """What is wrong with the record there."""
        file = self._log.files.file_at(position)
        at = position - file.start
        reason = ""
        try:
            _, _, topic_at, properties_at, end = layout.locate(file.view, at, file.size, check_crc)
            stamped = layout.QUEUE_AND_PHYSICAL_OFFSET.unpack_from(file.view, at + layout.OFFSET_QUEUE_OFFSET)
            same_queue = file.view[topic_at : properties_at - 2] == topic and layout.queue_of(file.view, at) == queue_id
            if end - at != size or stamped != (offset, position) or not same_queue:
                reason = f"not the record of {topic.decode()} queue {queue_id} offset {offset}, as its entry says"
        except StoreCorrupt as error:
            reason = error.reason
        return StoreCorrupt(str(file.path), at, reason) if reason else None

    def appended_together(self, topic: str, queue_id: int, offset: int, most: int) -> int:
        """See `Readable.appended_together`."""
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
        """See `Store.search_time`."""
        queue = self._dispatcher.get(topic, queue_id)
        low, high = queue.min_offset, self._confirmed.end_of(queue)
        least_ms = timestamp_ms if boundary == "lower" else timestamp_ms + 1
        # What is no message counts with the one behind it.
        while low < high:
            middle = (low + high) // 2
            asked = queue.first_message(middle, high)
            while asked < high and not self._log.is_marked(queue.entry(asked)[0]):
                stop = min(asked + _LOOKS_A_STEP, high)
                found = (offset for offset, place in queue.messages(asked, stop) if self._log.is_marked(place))
                if (asked := next(found, stop)) < stop:
                    break
                yield None
                if self._dispatcher.get(topic, queue_id) is not queue:
                    raise QueueNotFound(f"queue {queue_id} of topic {topic} was deleted, and made again")
                low = max(low, queue.min_offset)  # retention goes on meanwhile
                asked = queue.first_message(max(stop, low), high)
            if asked < high and self._log.store_timestamp(queue.entry(asked)[0]) < least_ms:
                low = asked + 1
            else:
                high = middle
        low = max(low, queue.min_offset)
        return low if boundary == "lower" else max(queue.min_offset, low - 1)

    def record(self, physical_offset: int) -> Record:
        """See `Store.read_at`."""
        confirmed = self._confirmed.offset
        if physical_offset >= confirmed:
            raise MessageNotFound(f"offset {physical_offset} is beyond the log's confirmed end {confirmed}")
        record = self._log.record(physical_offset)
        if self._veils.are_down and self._hides(record):
            raise MessageNotFound(f"the message at offset {physical_offset} is part of a commit that is under way")
        return record

    def _hides(self, record: Record) -> bool:
        """Whether a record is behind its queue's veil."""
        return self._veils.hides((record.topic, record.queue_id), record.queue_offset, record.physical_offset)

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
        """See `Store.search`."""
        found: list[Record] = []
        seen: set[int] = set()
        log_end = self._log.max_offset if written else self._confirmed.offset
        left_bytes = float("inf") if max_bytes is None else max_bytes
        entries = self._dispatcher.index.find(topic, key, begin_ms, end_ms)
        places: list[int | None] = []

        def look() -> None:
            places[:] = islice(entries, _ENTRIES_A_STEP)

        wanted = topic.encode(), key.encode(), begin_ms, end_ms
        work = 0
        while True:
            yield look
            if not places:
                return found
            for position in places:
                if position is None or position in seen or position >= log_end:
                    continue
                seen.add(position)
                record = self._matching(position, *wanted)
                if record is not None and (written or not self._veils.are_down or not self._hides(record)):
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
        """The record at a place that the index tells of, if it has the key and is of that topic and time.

        What others have is not decoded: the index tells of all that have the same hash.
        """
        if not self._log.is_marked(position) or not begin_ms <= self._log.store_timestamp(position) <= end_ms:
            return None
        try:
            name, properties = self._log.name_and_properties(position)
            if name != topic or key not in properties or key not in tags_and_keys(properties)[1]:
                return None
            return self._log.record(position)
        except (NotFoundError, StoreCorrupt):
            return None
