"""Find the open halves of a broker in its log, and keep them in memory.

A half is open from its record in the half queue on, until an operation record lists its offset. A commit, a copy of the
half at another position, or its copy in the topic of given-up halves ends it too: each is appended together with its
operation record, and a crash may lose the second record only.

The offsets of CID_RMQ_SYS_TRANS in both half topics say where a start begins to read, as in RocketMQ.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.core.copies.property_scan import committed_records, records_of_topic
from raymq.actors.broker.core.copies.republisher import TRANSACTION, CopyPurpose, Republisher
from raymq.actors.broker.core.transactions.half_message import (
    HALF_QUEUE,
    OP_QUEUE,
    HalfPosition,
    ended_by,
    immunity_ms,
    origin_of,
    real_queue,
    resumed_from,
)
from raymq.actors.naming import CHECK_MAX_TIME_TOPIC, TRANSACTION_GROUP
from raymq.actors.protocol import TransactionOutcome
from raymq.storage.errors import InvalidInput, OffsetOutOfRange, QueueNotFound
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.transaction_checks import TransactionChecks

#: The purpose of all reads and copies of halves.
DUTY: Final = CopyPurpose(TRANSACTION)
#: One call indexes at most this many new halves, and reads at most this much.
_INDEXED_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 4 << 20
#: How many outcomes of ended transactions are kept in memory; older ones are looked up in the log.
_KEPT_OUTCOMES: Final = 100_000
#: A start looks for commits without an operation record in at least this much of the log's end: more than one append.
_TAIL_BYTES: Final = 32 << 20
_MAX_COUNT_DIGITS: Final = 9


@dataclass(slots=True)
class OpenHalf:
    """A half message whose transaction is open.

    Attributes:
        position: its position in the half queue and in the log.
        named: the position by which its producer knows it; differs from `position` if it was stored anew.
        topic, queue_id: where its commit goes.
        stored_ms: when it was stored, or first stored.
        content: flag, born time and CRC of the body, which its commit has in common with it.
        asked: how often its producers were asked.
        next_check_ms: when its producers are asked next.
        is_overdue: it was due, and no producer was connected.
    """

    position: HalfPosition
    named: HalfPosition
    topic: str
    queue_id: int
    producer_group: str
    unique_key: str
    stored_ms: int
    immunity_ms: int | None
    content: tuple[int, int, int]
    asked: int = 0
    next_check_ms: int = 0
    is_overdue: bool = False


class OpenHalves:
    """The open halves of one broker, oldest first. Used on the broker's event loop.

    Attributes:
        outcomes: of ended halves, by offset, as far as they are in memory; None: it is not known here which.
        moved: by the offset that its producer knows, the offset of a half that was stored anew.
        unrecorded: the offsets of halves that have ended in the log and have no operation record.
    """

    def __init__(self, store: Store, copying: Republisher, checks: TransactionChecks) -> None:
        self._store = store
        self._copying = copying
        self._checks = checks
        self.outcomes: dict[int, TransactionOutcome | None] = {}
        self.moved: dict[int, int] = {}
        self.unrecorded: list[int] = []
        #: Open halves by their offset in the half queue.
        self._open: dict[int, OpenHalf] = {}
        #: The offsets of all halves that were open when they were indexed, ascending; the first one is open.
        self._order: deque[int] = deque()
        #: Operation records: their offsets, and the highest half offset that each lists.
        self._operations: deque[tuple[int, int]] = deque()
        #: (time in ms, half offset) of the next question; entries of ended halves are skipped.
        self._due: list[tuple[int, int]] = []
        #: The first half offset that is not indexed.
        self._at = 0
        self._recover()

    def __iter__(self) -> Iterator[OpenHalf]:
        return iter(self._open.values())

    def get(self, offset: int) -> OpenHalf | None:
        """Return the open half at an offset of the half queue, else None."""
        return self._open.get(offset)

    def oldest(self) -> OpenHalf | None:
        """Return the oldest open half."""
        self._forget_ended()
        return self._open[self._order[0]] if self._order else None

    def pop_due(self, now_ms: int) -> OpenHalf | None:
        """Return a half whose producers are to be asked, and do not return it again until it is scheduled."""
        while self._due and self._due[0][0] <= now_ms:
            half = self._open.get(heapq.heappop(self._due)[1])
            if half is not None and half.next_check_ms <= now_ms:  # neither ended nor asked since
                return half
        return None

    def schedule(self, half: OpenHalf, at_ms: int) -> None:
        """Set when the producers of a half are asked next."""
        half.next_check_ms = at_ms
        heapq.heappush(self._due, (at_ms, half.position.queue_offset))

    def set_ended(self, offset: int, outcome: TransactionOutcome | None) -> None:
        """End a half; None: neither committed nor rolled back."""
        self._open.pop(offset, None)
        self.outcomes[offset] = outcome
        self._checks.forget(offset)
        while len(self.outcomes) > _KEPT_OUTCOMES and (oldest := next(iter(self.outcomes))) < self.first_open():
            del self.outcomes[oldest]

    def add_operation(self, offset: int, highest_half: int) -> None:
        """Note an operation record at `offset`, and the highest half offset that it lists."""
        self._operations.append((offset, highest_half))

    def first_open(self) -> int:
        """Return the offset of the half queue before which no half is open."""
        self._forget_ended()
        return self._order[0] if self._order else self._at

    def first_operation(self) -> int:
        """Return the offset of the first operation record that a start has to read."""
        first = self.first_open()
        while self._operations and self._operations[0][1] < first:
            self._operations.popleft()
        return self._operations[0][0] if self._operations else self.bounds(OP_QUEUE)[1]

    def bounds(self, topic_queue: tuple[str, int]) -> tuple[int, int]:
        """Return the first offset of a queue and its end."""
        try:
            return self._store.min_offset(*topic_queue), self._store.max_offset(*topic_queue, written=True)
        except QueueNotFound:
            return 0, 0

    def _forget_ended(self) -> None:
        while self._order and self._order[0] not in self._open:
            self._order.popleft()

    # -- index ---------------------------------------------------------------------------------------------------

    def index_up_to(self, offset: int) -> None:
        """Index new halves until the one at `offset` is indexed."""
        while self._at <= offset and self.index():
            pass

    def index(self) -> bool:
        """Index some new halves; return False if there are none."""
        low, high = self.bounds(HALF_QUEUE)
        self._at = max(self._at, low)
        if self._at >= high:
            return False
        most = min(_INDEXED_AT_ONCE, high - self._at)
        try:
            records, following = self._copying.read(DUTY, HALF_QUEUE, self._at, most, _BYTES_AT_ONCE, written=True)
        except (OffsetOutOfRange, QueueNotFound):
            return False
        for record in records:
            if record.queue_offset not in self.outcomes:
                self._add(record)
        self._at = following
        return True

    def _add(self, record: Record) -> None:
        """Add an open half."""
        position = HalfPosition(record.queue_offset, record.physical_offset)
        try:
            topic, queue_id = real_queue(record)
        except InvalidInput as error:
            self._copying.quarantine(DUTY, [self._copying.place(HALF_QUEUE, record.queue_offset)], str(error))
            self.outcomes[record.queue_offset] = None
            return
        origin, resumed = origin_of(record), resumed_from(record)
        if resumed is not None:
            self._checks.add_resumed(resumed)
        if origin is not None:
            self._replace(self.moved.get(origin.queue_offset, origin.queue_offset))
            self.moved[origin.queue_offset] = record.queue_offset
        immunity = immunity_ms(record)
        asked = self._checks.asked.get(record.queue_offset)
        if asked is None:
            asked = 0 if origin is None else checks_of(record)
        after_ms = int(self._store.config.transaction_check_after * 1000) if immunity is None else immunity
        half = OpenHalf(
            position=position,
            named=position if origin is None else origin,
            topic=topic,
            queue_id=queue_id,
            producer_group=record.properties.get(names.PGROUP, ""),
            unique_key=record.unique_key or "",
            stored_ms=record.store_timestamp_ms if origin is None else record.born_timestamp_ms,
            immunity_ms=immunity,
            content=content_of(record),
            asked=asked,
        )
        self._open[position.queue_offset] = half
        self._order.append(position.queue_offset)
        self.schedule(half, record.store_timestamp_ms + after_ms)

    def _replace(self, offset: int) -> None:
        """End a half that a copy replaces.

        A crash may have prevented its operation record.
        """
        if offset in self._open:
            self.set_ended(offset, None)
            self.unrecorded.append(offset)

    # -- start ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Find the halves after the stored progress that have not ended in the log."""
        self._at = self._begin(HALF_QUEUE)
        self._read_operations()
        while self.index():
            pass
        first = self.oldest()
        if first is not None:
            tail = max(0, self._store.max_physical_offset - _TAIL_BYTES)
            self._end_unrecorded(max(first.position.physical_offset, min(self._checks.known_before, tail)))

    def _begin(self, topic_queue: tuple[str, int]) -> int:
        low, high = self.bounds(topic_queue)
        stored = self._store.consumer_offsets.get(TRANSACTION_GROUP, *topic_queue)
        return low if stored is None else min(max(low, stored), high)

    def _read_operations(self) -> None:
        offset = self._begin(OP_QUEUE)
        while offset < self.bounds(OP_QUEUE)[1]:
            records, following = self._copying.read(
                DUTY, OP_QUEUE, offset, _INDEXED_AT_ONCE, _BYTES_AT_ONCE, written=True
            )
            for record in records:
                ended = ended_by(record)
                self.outcomes |= dict.fromkeys(ended)
                self.add_operation(record.queue_offset, max(ended, default=-1))
            offset = following

    def _end_unrecorded(self, log_end: int) -> None:
        """End the halves whose end lies at or after `log_end` without an operation record."""
        by_position = {half.position.physical_offset: half for half in self}
        for record in committed_records(self._store, log_end):
            half = by_position.get(record.prepared_transaction_offset)
            if half is not None and record.topic == half.topic and content_of(record) == half.content:
                self.set_ended(half.position.queue_offset, TransactionOutcome.COMMIT)
                self.unrecorded.append(half.position.queue_offset)
        by_name = {half.named: half for half in self}
        for record in records_of_topic(self._store, CHECK_MAX_TIME_TOPIC, log_end):
            origin = origin_of(record)
            half = None if origin is None else by_name.get(origin)
            if half is not None and half.position.physical_offset < record.physical_offset:
                self.set_ended(half.position.queue_offset, None)
                self.unrecorded.append(half.position.queue_offset)


def checks_of(copy: Record) -> int:
    """Return the number of checks of a half when this copy was stored."""
    text = copy.properties.get(names.TRANSACTION_CHECK_TIMES, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_COUNT_DIGITS else 0


def content_of(record: Record) -> tuple[int, int, int]:
    """Return what a half and its commit have in common: flag, born time and CRC of the body."""
    return record.flag, record.born_timestamp_ms, record.body_crc
