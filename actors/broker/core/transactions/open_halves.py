"""Find the open halves of a broker in its log, and keep them in memory.

A half is open from its record in the half queue on, until an operation record lists its offset. A commit, a copy of the
half at another position, or its copy in the topic of given-up halves ends it too: each is appended together with its
operation record, and a crash may lose the second record only.

The offsets of CID_RMQ_SYS_TRANS in both half topics say where a start begins to read, as in RocketMQ.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.core.copies.property_scan import committed_records, records_of_topic
from raymq.actors.broker.core.copies.republisher import TRANSACTION, CopyPurpose, Republisher
from raymq.actors.broker.core.transactions.half_message import (
    HALF_QUEUE,
    OP_QUEUE,
    HalfPosition,
    Origin,
    ended_by,
    immunity_ms,
    origin_of,
    real_queue,
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
#: One call passes over at most this many halves that nobody can be asked about.
_PASSED_AT_ONCE: Final = 10_000
#: More operation records than this are kept in pairs.
_MOST_OPERATIONS: Final = 10_000
#: A start reads at least this many halves; open ones are moved to the end of the queue only if it would read more.
_READ_AT_START: Final = 20_000
#: Open halves are moved only if there are fewer of them than this share of the halves that a start reads.
_SPARSE_SHARE: Final = 1 / 8
#: A start looks for commits without an operation record in at least this much of the log's end: more than one append.
_TAIL_BYTES: Final = 32 << 20
_MAX_COUNT_DIGITS: Final = 9


@dataclass(slots=True)
class OpenHalf:
    """A half message whose transaction is open.

    Attributes:
        position: its position in the half queue and in the log.
        named: the position by which its producer knows it; differs from `position` if it was stored anew.
        topic: where its commit goes.
        stored_ms: when it was stored, or first stored.
        give_up_ms: when it is given up whatever its producers answer.
        content: flag, born time and CRC of the body, which its commit has in common with it.
        asked: how often its producers were asked.
        next_check_ms: when its producers are asked next, or it is given up.
    """

    position: HalfPosition
    named: HalfPosition
    topic: str
    producer_group: str
    unique_key: str
    stored_ms: int
    give_up_ms: int
    immunity_ms: int | None
    content: tuple[int, int, int]
    asked: int = 0
    next_check_ms: int = 0

    @property
    def origin(self) -> Origin:
        """Return what its copies say about it."""
        return Origin(self.named, self.stored_ms)


class OpenHalves:
    """The open halves of one broker, oldest first. Used on the broker's event loop.

    Attributes:
        outcomes: of halves that ended lately, by the offset that the producer knows; None: given up or set aside.
        unrecorded: the offsets of halves that have ended in the log and have no operation record.
    """

    def __init__(self, store: Store, copying: Republisher, checks: TransactionChecks) -> None:
        self._store = store
        self._copying = copying
        self._checks = checks
        self.outcomes: OrderedDict[int, TransactionOutcome | None] = OrderedDict()
        self.unrecorded: list[int] = []
        #: Open halves by their offset in the half queue, ascending.
        self._open: OrderedDict[int, OpenHalf] = OrderedDict()
        #: By the offset that its producer knows, the offset of an open half that was stored anew.
        self._moved: dict[int, int] = {}
        #: Operation records: the offset of the first one of some, and the highest half offset that they list.
        self._operations: deque[tuple[int, int]] = deque()
        #: (time in ms, half offset) of the next question; entries of ended halves are skipped.
        self._due: list[tuple[int, int]] = []
        #: Halves that are due while no producer of their group is connected, by producer group and offset.
        self._waiting: dict[str, dict[int, OpenHalf]] = {}
        #: The first half offset that is not indexed.
        self._at = 0
        #: The halves from there on that operation records list; only during a start.
        self._listed: set[int] = set()
        self._recover()

    def __iter__(self) -> Iterator[OpenHalf]:
        return iter(self._open.values())

    def find(self, offset: int) -> OpenHalf | None:
        """Return the open half that its producer knows by this offset, else None."""
        self._index_up_to(offset)
        return self._open.get(self._moved.get(offset, offset))

    def at(self, offset: int) -> OpenHalf | None:
        """Return the open half at this offset of the half queue, else None."""
        return self._open.get(offset)

    def oldest(self) -> OpenHalf | None:
        """Return the open half with the lowest offset."""
        return next(iter(self._open.values()), None)

    def is_sparse(self) -> bool:
        """Return True if a start would read many ended halves behind the oldest open one."""
        span = self._at - self.first_open()
        return span > _READ_AT_START and len(self._open) < span * _SPARSE_SHARE

    def set_ended(self, half: OpenHalf, outcome: TransactionOutcome | None) -> None:
        """End a half; None: it was given up or set aside."""
        self._remove(half)
        self.outcomes[half.named.queue_offset] = outcome
        if len(self.outcomes) > _KEPT_OUTCOMES:
            self.outcomes.popitem(last=False)

    def replace(self, half: OpenHalf, offset: int) -> None:
        """Index the copy at `offset` in place of a half; its questions still count."""
        self._remove(half)
        self._index_up_to(offset)
        copy = self._open.get(offset)
        if half.asked and copy is not None:
            copy.asked = half.asked
            self._checks.count(offset, half.asked)

    def _remove(self, half: OpenHalf) -> None:
        offset = half.position.queue_offset
        self._open.pop(offset, None)
        self._moved.pop(half.named.queue_offset, None)
        self._checks.forget(offset)
        waiting = self._waiting.get(half.producer_group)
        if waiting is not None and waiting.pop(offset, None) is not None and not waiting:
            del self._waiting[half.producer_group]

    # -- questions -----------------------------------------------------------------------------------------------

    def schedule(self, half: OpenHalf, at_ms: int) -> None:
        """Set when the producers of a half are asked next.

        It is given up earlier if its time comes.
        """
        half.next_check_ms = min(at_ms, half.give_up_ms)
        heapq.heappush(self._due, (half.next_check_ms, half.position.queue_offset))
        if len(self._due) > 2 * len(self._open) + _PASSED_AT_ONCE:
            self._due = [(each.next_check_ms, offset) for offset, each in self._open.items()]
            heapq.heapify(self._due)

    def pop_due(self, now_ms: int, connected: Collection[str]) -> OpenHalf | None:
        """Return a half that is due and not scheduled any more.

        Producers of its group are connected, or its time to be given up has come. Other due halves wait until `wake`.
        """
        for _ in range(_PASSED_AT_ONCE):
            if not self._due or self._due[0][0] > now_ms:
                return None
            half = self._open.get(heapq.heappop(self._due)[1])
            if half is None or half.next_check_ms > now_ms:  # ended, or asked since
                continue
            if half.producer_group in connected or half.give_up_ms <= now_ms:
                return half
            self._waiting.setdefault(half.producer_group, {})[half.position.queue_offset] = half
            self.schedule(half, half.give_up_ms)
        return None

    def wake(self, producer_group: str, now_ms: int) -> None:
        """Make the halves due that waited for a producer of this group."""
        for half in self._waiting.pop(producer_group, {}).values():
            self.schedule(half, now_ms)

    def waiting_for(self) -> Counter[str]:
        """Return by producer group how many halves are due while no producer is connected."""
        return Counter({group: len(halves) for group, halves in self._waiting.items()})

    # -- progress ------------------------------------------------------------------------------------------------

    def add_operation(self, offset: int, highest_half: int) -> None:
        """Note an operation record at `offset`, and the highest half offset that it lists."""
        self._operations.append((offset, highest_half))
        if len(self._operations) > _MOST_OPERATIONS:
            pairs = [self._operations.popleft() for _ in range(_MOST_OPERATIONS)]
            merged = zip(pairs[::2], pairs[1::2], strict=True)
            self._operations.extendleft((first[0], max(first[1], second[1])) for first, second in reversed([*merged]))

    def first_open(self) -> int:
        """Return the offset of the half queue before which no half is open."""
        return next(iter(self._open), self._at)

    def first_operation(self) -> int:
        """Return an operation record's offset; a start has to read none before it."""
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

    # -- index ---------------------------------------------------------------------------------------------------

    def _index_up_to(self, offset: int) -> None:
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
            if record.queue_offset not in self._listed:
                self._add(record)
        self._at = following
        return True

    def _add(self, record: Record) -> None:
        """Add an open half."""
        position = HalfPosition(record.queue_offset, record.physical_offset)
        try:
            topic, _ = real_queue(record)
        except InvalidInput as error:
            self._copying.quarantine(DUTY, [self._copying.place(HALF_QUEUE, record.queue_offset)], str(error))
            return
        origin = origin_of(record) or Origin(position, record.store_timestamp_ms)
        if origin.position != position:
            # A crash may have prevented the operation record of the half that this copy replaces.
            replaced = self._open.get(self._moved.get(origin.position.queue_offset, origin.position.queue_offset))
            if replaced is not None:
                self._remove(replaced)
                self.unrecorded.append(replaced.position.queue_offset)
            self._moved[origin.position.queue_offset] = record.queue_offset
        immunity = immunity_ms(record)
        config = self._store.config
        after_ms = int(config.transaction_check_after * 1000) if immunity is None else immunity
        half = OpenHalf(
            position=position,
            named=origin.position,
            topic=topic,
            producer_group=record.properties.get(names.PGROUP, ""),
            unique_key=record.unique_key or "",
            stored_ms=origin.stored_ms,
            give_up_ms=origin.stored_ms + int(config.retention_hours * 3_600_000),
            immunity_ms=immunity,
            content=content_of(record),
            asked=checks_of(record) if (asked := self._checks.asked(record.queue_offset)) is None else asked,
        )
        self._open[position.queue_offset] = half
        self.schedule(half, half.stored_ms + after_ms)

    # -- start ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Find the halves after the stored progress that have not ended in the log."""
        self._at = self._begin(HALF_QUEUE)
        self._checks.forget_before(self._at)
        self._read_operations()
        while self.index():
            pass
        self._listed.clear()
        first = self.oldest()
        if first is not None:
            tail = max(0, self._store.max_physical_offset - _TAIL_BYTES)
            self._end_unrecorded(max(first.position.physical_offset, min(self._checks.known_before, tail)))

    def _begin(self, topic_queue: tuple[str, int]) -> int:
        low, high = self.bounds(topic_queue)
        stored = self._store.consumer_offsets.get(TRANSACTION_GROUP, *topic_queue)
        return low if stored is None else min(max(low, stored), high)

    def _read_operations(self) -> None:
        """Collect the halves that operation records list; offsets that no half has are ignored."""
        offset, end = self._begin(OP_QUEUE), self.bounds(HALF_QUEUE)[1]
        while offset < self.bounds(OP_QUEUE)[1]:
            records, following = self._copying.read(
                DUTY, OP_QUEUE, offset, _INDEXED_AT_ONCE, _BYTES_AT_ONCE, written=True
            )
            for record in records:
                ended = [each for each in ended_by(record) if each < end]
                self._listed.update(each for each in ended if each >= self._at)
                self.add_operation(record.queue_offset, max(ended, default=-1))
            offset = following

    def _end_unrecorded(self, log_end: int) -> None:
        """End the halves whose end lies at or after `log_end` without an operation record."""
        by_position = {half.position.physical_offset: half for half in self}
        for record in committed_records(self._store, log_end):
            half = by_position.get(record.prepared_transaction_offset)
            if half is not None and record.topic == half.topic and content_of(record) == half.content:
                self.set_ended(half, TransactionOutcome.COMMIT)
                self.unrecorded.append(half.position.queue_offset)
        by_name = {half.named: half for half in self}
        for record in records_of_topic(self._store, CHECK_MAX_TIME_TOPIC, log_end):
            origin = origin_of(record)
            half = None if origin is None else by_name.get(origin.position)
            if half is not None and half.position.physical_offset < record.physical_offset:
                self.set_ended(half, None)
                self.unrecorded.append(half.position.queue_offset)


def checks_of(half: Record) -> int:
    """Return the number of checks of a half when this copy was stored."""
    text = half.properties.get(names.TRANSACTION_CHECK_TIMES, "") if origin_of(half) is not None else ""
    return int(text) if text.isdecimal() and len(text) <= _MAX_COUNT_DIGITS else 0


def content_of(record: Record) -> tuple[int, int, int]:
    """Return flag, born time and body CRC, which a half shares with its commit."""
    return record.flag, record.born_timestamp_ms, record.body_crc
