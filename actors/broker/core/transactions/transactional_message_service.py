"""End the transactions of a broker, and choose whose producers are asked.

A half message stays in the half queue until its producer commits or rolls back. The commit is stored together with its
operation record, the committed message first: a crash may leave the message without the operation record, never the
other way round, and a start treats such a half as committed. So the log alone decides which transactions are open.

The first decision counts. RocketMQ's format is kept, and so is its progress: the offsets of CID_RMQ_SYS_TRANS in both
half topics. Before these offsets no half is open. They are stored once everything they depend on is durable.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.actors.broker.core.copies.record_copy import RecordAppender, check_properties_size, join, reencode
from raymq.actors.broker.core.copies.republisher import Republisher
from raymq.actors.broker.core.delay.topic_incarnation import topic_of_waiting
from raymq.actors.broker.core.transactions.half_message import (
    GIVEN_UP_QUEUE,
    HALF_QUEUE,
    OP_QUEUE,
    HalfPosition,
    committed_record,
    half_properties,
    operation_record,
    origin_of,
    real_queue,
    record_to_check,
    resumed_from,
    resumed_half,
    stored_again,
    without_transaction_flags,
)
from raymq.actors.broker.core.transactions.open_halves import (
    DUTY,
    OpenHalf,
    OpenHalves,
    checks_of,
    content_of,
)
from raymq.actors.errors import MessageNotFound, RayMQError, TopicNotFound, TransactionEnded
from raymq.actors.naming import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from raymq.actors.protocol import RecordPositions, TransactionOutcome
from raymq.storage.config import split_host
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.errors import InvalidInput, NotFoundError, StoreCorrupt
from raymq.storage.log.index_file import EVER_MS
from raymq.storage.records.record import SYS_FLAG_TRANSACTION_COMMIT, Record, decode, pack_host_bytes
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig

#: One call lists at most this many halves, and reads at most this much.
_LISTED_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 4 << 20
#: One call lists at most this many given-up halves: the log is searched for each.
_GIVEN_UP_AT_ONCE: Final = 50
#: One step moves at most this many halves.
_HALVES_A_STEP: Final = 100
#: How many messages with the same unique key are searched for the commit of a half.
_SEARCHED: Final = 64
#: After this much growth of the log, it is stored that all commits in it have operation records.
_NOTE_BYTES: Final = 16 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndOfTransaction:
    """The decision about a half, as a producer or an administrator sends it.

    Attributes:
        unique_keys: what the producer says about the message; with any of it, the half's own key must be among it.
        from_check: it answers a question of the broker.
    """

    half: HalfPosition
    producer_group: str
    outcome: TransactionOutcome
    unique_keys: frozenset[str] = frozenset()
    from_check: bool = False

    def is_about(self, unique_key: str | None) -> bool:
        """Return False if the decision is about a message with another unique key."""
        return not self.unique_keys or not unique_key or unique_key in self.unique_keys


@dataclass(frozen=True, slots=True)
class CommittedMessage:
    """The topic and the record size in bytes of a message that became visible."""

    topic: str
    size: int


class TransactionalMessageService:
    """The transactions of one broker. Used on the broker's event loop.

    `clock` is wall time in seconds.
    """

    def __init__(self, store: Store, clock: Callable[[], float], append: RecordAppender, copying: Republisher) -> None:
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self._checks = store.tables.transaction_checks
        self._halves = OpenHalves(store, copying, self._checks)
        self._host = pack_host_bytes(*split_host(store.config.store_host))
        #: Half offset, operation offset and log end that are stored once the log is durable up to that end.
        self._progress: tuple[int, int, int] | None = None
        self._stored_progress = (-1, -1)
        #: How many transactions were ended since the start, by topic and outcome.
        self.ended: Counter[tuple[str, TransactionOutcome]] = Counter()

    # -- halves --------------------------------------------------------------------------------------------------

    def redirect_half(self, draft: InboundMessage) -> None:
        """Redirect a transactional draft to the half topic.

        Raise MessageIllegal if it is delayed, or its properties leave no room for those of its commit.
        """
        told = draft.properties
        kept = half_properties(told, draft.topic, draft.queue_id)
        check_properties_size(kept)
        told.clear()
        told |= kept
        draft.sys_flag = without_transaction_flags(draft.sys_flag)
        draft.topic, draft.queue_id = HALF_QUEUE

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> RecordPositions:
        """Store encoded records of `topic_queue` as halves.

        Raises:
            InvalidInput: a record is of another queue.
            MessageIllegal: as `redirect_half`.
        """
        waiting, position = [], 0
        for size in sizes.tolist():
            record = decode(records, position, check_crc=False)
            position += size
            if (record.topic, record.queue_id) != topic_queue:
                raise InvalidInput(
                    "records", f"records of topic {topic_queue[0]}, queue {topic_queue[1]}", record.topic
                )
            kept = half_properties(record.properties, *topic_queue)
            check_properties_size(kept)
            record.sys_flag = without_transaction_flags(record.sys_flag)
            waiting.append(reencode(record, *HALF_QUEUE, kept))
        result = self._append(*join(waiting), HALF_QUEUE)
        queue_ids = np.zeros(len(sizes), np.int32)
        return RecordPositions(HALF_TOPIC, queue_ids, result.queue_offsets, result.physical_offsets)

    def end(self, end: EndOfTransaction) -> CommittedMessage | None:
        """Commit or roll back a transaction; return the message that became visible, if any.

        A repeated decision has no effect, UNKNOWN neither.

        Raises:
            TransactionEnded: it was decided otherwise, given up, or its immunity time is over.
            MessageNotFound: there is no such half; a loss of power or an election may have taken it.
            TopicNotFound: the topic of the message was deleted; the transaction stays open.
            StoreCorrupt: the half cannot be read.
            RayMQError: the half is another producer group's, or at another position.
        """
        if end.outcome is TransactionOutcome.UNKNOWN:
            return None
        half = self._halves.find(end.half.queue_offset)
        if half is None:
            self._check_same_outcome(end)
            return None
        if not end.is_about(half.unique_key):
            raise _not_there(end)
        if end.half not in (half.named, half.position):
            raise RayMQError(f"the commit log offset of the half message is wrong: {end.half}")
        if half.producer_group != end.producer_group:
            raise RayMQError(f"the producer group is wrong: {end.producer_group} is not {half.producer_group}")
        age_ms = self._now_ms() - half.stored_ms
        if not end.from_check and half.immunity_ms is not None and age_ms > half.immunity_ms:
            raise TransactionEnded(
                f"transaction {half.unique_key} of topic {half.topic} is older than its check_after (immunity time) of "
                f"{half.immunity_ms / 1000:g} s: it is still open, and only the answer to a check ends it"
            )
        if end.outcome is TransactionOutcome.ROLLBACK:
            self._append_operation(half.position.queue_offset)
            self._halves.set_ended(half, TransactionOutcome.ROLLBACK)
            self.ended[half.topic, TransactionOutcome.ROLLBACK] += 1
            return None
        return self._commit(half)

    def _commit(self, half: OpenHalf) -> CommittedMessage:
        record = self._store.read_at(half.position.physical_offset)
        config = topic_of_waiting(self._store, record)
        queues = max(1, config.read_queues, config.write_queues)
        topic_queue = config.name, real_queue(record)[1] % queues
        message = committed_record(record, topic_queue)
        operation = operation_record([half.position.queue_offset], self._now_ms(), self._host)
        result = self._append(*join([message, operation]), topic_queue, OP_QUEUE, again=True)
        self._halves.add_operation(int(result.queue_offsets[1]), half.position.queue_offset)
        self._halves.set_ended(half, TransactionOutcome.COMMIT)
        self.ended[half.topic, TransactionOutcome.COMMIT] += 1
        return CommittedMessage(topic_queue[0], len(message))

    def _append_operation(self, *offsets: int) -> None:
        record = operation_record(offsets, self._now_ms(), self._host)
        result = self._append(*join([record]), OP_QUEUE, again=True)
        self._halves.add_operation(int(result.queue_offsets[0]), max(offsets))

    def _check_same_outcome(self, end: EndOfTransaction) -> None:
        """Raise unless a half that is not open has ended with the outcome of `end`."""
        offset = end.half.queue_offset
        outcome = self._halves.outcomes.get(offset) or self._stored_outcome(end)
        if outcome is not end.outcome:
            name = ", ".join(sorted(end.unique_keys)) or f"at offset {offset} of {HALF_TOPIC}"
            how = f"has ended with {outcome.value}" if outcome else "was given up"
            _log.warning(
                "group %s wants to %s transaction %s, which %s", end.producer_group, end.outcome.value, name, how
            )
            raise TransactionEnded(f"transaction {name} {how}, {end.outcome.value} changes nothing")

    def _stored_outcome(self, end: EndOfTransaction) -> TransactionOutcome | None:
        """Return the outcome of a half from the log; None if it was given up."""
        low, high = self._halves.bounds(HALF_QUEUE)
        if not low <= end.half.queue_offset < high:
            raise _not_there(end)
        with self._store.read(*HALF_QUEUE, end.half.queue_offset, 1, written=True) as lease:
            half = lease.messages()[0]
        if end.half.physical_offset != half.physical_offset or not end.is_about(half.unique_key):
            raise _not_there(end)
        if any(_is_commit_of(each, half) for each in self._with_key_of(half, real_queue(half)[0])):
            return TransactionOutcome.COMMIT
        origins = [origin_of(each) for each in self._with_key_of(half, CHECK_MAX_TIME_TOPIC)]
        is_given_up = any(origin is not None and origin.position == end.half for origin in origins)
        return None if is_given_up else TransactionOutcome.ROLLBACK

    def _with_key_of(self, half: Record, topic: str) -> list[Record]:
        """Return the messages of a topic with the unique key of a half."""
        if half.unique_key is None:
            return []
        try:
            return run_steps(self._store.search(topic, half.unique_key, 0, EVER_MS, _SEARCHED))
        except NotFoundError:
            return []

    # -- questions to producers ----------------------------------------------------------------------------------

    def due_checks(self, connected: Collection[str], most: int) -> Iterator[tuple[OpenHalf, Record]]:
        """Yield the halves whose producers are to be asked now, with their records.

        Each is asked again later in any case; the caller reports with `asked` that a question was sent. Halves that
        were asked too often or are too old are given up.

        Args:
            connected: the producer groups that can be asked; the halves of others wait for `wake`.
            most: how many halves at most; fewer if they are large.
        """
        self._halves.index()
        now_ms = self._now_ms()
        every_ms = int(self._store.config.transaction_check_every * 1000)
        given_up: list[OpenHalf] = []
        size = 0
        for _ in range(most):
            half = self._halves.pop_due(now_ms, connected) if size < _BYTES_AT_ONCE else None
            if half is None:
                break
            self._halves.schedule(half, now_ms + every_ms)
            record = self._readable(half)
            if record is None:
                continue
            size += record.size
            if half.asked < self._store.config.transaction_check_max and now_ms < half.give_up_ms:
                yield half, record
            elif self._give_up(half, record):
                given_up.append(half)
        if given_up:
            _log.warning(
                "%d transactions are given up: producer group %s was asked %d times about %s of topic %s, for example, "
                "and did not decide. `raymq transaction list` shows them, `raymq transaction resume` asks again",
                *(len(given_up), given_up[0].producer_group, given_up[0].asked),
                *(given_up[0].unique_key, given_up[0].topic),
            )

    def wake(self, producer_groups: Collection[str]) -> None:
        """Ask about the halves that waited for producers of these groups."""
        for group in producer_groups:
            self._halves.wake(group, self._now_ms())

    def waiting_for(self) -> Counter[str]:
        """Return by producer group how many halves are due while no producer is connected."""
        return self._halves.waiting_for()

    def asked(self, half: OpenHalf) -> None:
        """Count a question that was sent to a producer of the half."""
        half.asked += 1
        self._checks.count(half.position.queue_offset, half.asked)

    def _readable(self, half: OpenHalf) -> Record | None:
        """Return the record of an open half; set a half aside that cannot be committed."""
        try:
            record = self._store.read_at(half.position.physical_offset)
            topic_of_waiting(self._store, record)
        except (StoreCorrupt, NotFoundError, TopicNotFound) as error:
            self._set_aside(half, error)
            return None
        return record

    def _set_aside(self, half: OpenHalf, error: Exception) -> None:
        place = self._copying.place(HALF_QUEUE, half.position.queue_offset)
        self._copying.quarantine(DUTY, [place], f"{type(error).__name__}: {error}")
        self._append_operation(half.position.queue_offset)
        self._halves.set_ended(half, None)

    def _give_up(self, half: OpenHalf, record: Record) -> bool:
        """Move a half to the given-up ones; return False if it was set aside."""
        if self._store.topic_configs.get(CHECK_MAX_TIME_TOPIC) is None:
            self._store.topic_configs.put_soon(TopicConfig(CHECK_MAX_TIME_TOPIC, 1, 1))
        if self._store_again(half, record, GIVEN_UP_QUEUE) is None:
            return False
        self._halves.set_ended(half, None)
        return True

    def _store_again(self, half: OpenHalf, record: Record, topic_queue: tuple[str, int]) -> int | None:
        """Append a copy of a half, and the operation record of the old one.

        Return the queue offset of the copy; None if the half was set aside, since its properties leave no room.
        """
        try:
            copy = stored_again(record, topic_queue, half.origin, half.asked)
        except InvalidInput as error:
            self._set_aside(half, error)
            return None
        operation = operation_record([half.position.queue_offset], self._now_ms(), self._host)
        result = self._append(*join([copy, operation]), topic_queue, OP_QUEUE, again=True)
        self._halves.add_operation(int(result.queue_offsets[1]), half.position.queue_offset)
        return int(result.queue_offsets[0])

    # -- for people ----------------------------------------------------------------------------------------------

    def open_halves(self) -> list[OpenHalf]:
        """Return the open halves, oldest first."""
        self._halves.index()
        return list(self._halves)

    def listed(self, begin: int, most: int, *, given_up: bool) -> tuple[list[tuple[bytes, int]], int | None]:
        """Return open halves, or given-up ones, from an offset of their queue on.

        Returns:
            The record of each in its real queue, and how often its producers were asked; and where to continue, None
            at the end.
        """
        if given_up:
            end = self._halves.bounds(GIVEN_UP_QUEUE)[1]
            records, following = self.given_up(begin, min(most, _GIVEN_UP_AT_ONCE))
            return [(_shown(each), checks_of(each)) for each in records], following if following < end else None
        found: list[tuple[bytes, int]] = []
        size = 0
        for half in self.open_halves():
            if half.position.queue_offset < begin:
                continue
            if len(found) >= min(most, _LISTED_AT_ONCE) or size >= _BYTES_AT_ONCE:
                return found, half.position.queue_offset
            with contextlib.suppress(StoreCorrupt, NotFoundError):  # the next check sets it aside
                found.append((_shown(self._store.read_at(half.position.physical_offset)), half.asked))
                size += len(found[-1][0])
        return found, None

    def given_up(self, begin: int, most: int) -> tuple[list[Record], int]:
        """Return given-up halves that were not resumed, and the offset to continue at.

        The result is empty, and the offset is the end, if there are none from offset `begin` on.
        """
        low, high = self._halves.bounds(GIVEN_UP_QUEUE)
        begin = max(begin, low)
        if begin >= high:
            return [], high
        records, following = self._copying.read(DUTY, GIVEN_UP_QUEUE, begin, most, _BYTES_AT_ONCE, written=True)
        return [each for each in records if not self._was_resumed(each)], following

    def _was_resumed(self, given_up: Record) -> bool:
        position = HalfPosition(given_up.queue_offset, given_up.physical_offset)
        return any(resumed_from(each) == position for each in self._with_key_of(given_up, HALF_TOPIC))

    def resume(self, physical_offset: int) -> None:
        """Let the producers of a half be asked from the beginning.

        The half is open, or it was given up; then it is open again, at another position.

        Raises:
            MessageNotFound, MessageExpired: there is no message.
            InvalidInput: the message is no half that waits for a decision.
            TopicNotFound: the topic of the message was deleted.
        """
        self._halves.index()
        record = self._store.read_at(physical_offset)
        half = self._halves.at(record.queue_offset) if (record.topic, record.queue_id) == HALF_QUEUE else None
        if half is not None:
            half.asked = 0
            self._halves.schedule(half, self._now_ms())
            self._checks.forget(record.queue_offset)
            return
        is_given_up = (record.topic, record.queue_id) == GIVEN_UP_QUEUE
        if not is_given_up or self._was_resumed(record):
            raise InvalidInput("message_id", "that of an open transaction, or of one that was given up", record.topic)
        topic_of_waiting(self._store, record)
        self._append(*join([resumed_half(record)]), HALF_QUEUE, again=True)
        self._halves.index()

    # -- moving before log files are deleted ---------------------------------------------------------------------

    def first_log_position(self) -> int | None:
        """Return the physical offset of the oldest open half, or None."""
        self._halves.index()
        oldest = self._halves.oldest()
        return None if oldest is None else oldest.position.physical_offset

    def move_before(self, place: int) -> None:
        """Store open halves anew that lie before `place` of the log, some at a time."""
        self._halves.index()
        size = 0
        for _ in range(_HALVES_A_STEP):
            half = self._halves.oldest()
            if half is None or half.position.physical_offset >= place or size >= _BYTES_AT_ONCE:
                return
            size += self._move(half)

    def _move(self, half: OpenHalf) -> int:
        """Store an open half anew at the end of the queue; return its size."""
        record = self._readable(half)
        offset = None if record is None else self._store_again(half, record, HALF_QUEUE)
        if record is None or offset is None:
            return 0
        self._halves.replace(half, offset)
        return record.size

    # -- progress ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Index new halves, write operation records that a crash has prevented, and keep starts short."""
        self._halves.index()
        unrecorded = self._halves.unrecorded
        if unrecorded:
            self._append_operation(*unrecorded[:_HALVES_A_STEP])
            del unrecorded[:_HALVES_A_STEP]
        for _ in range(_HALVES_A_STEP):
            half = self._halves.oldest()
            if half is None or not self._halves.is_sparse():
                return
            self._move(half)

    def save(self) -> None:
        """Store the progress. Raise StoreFull or StoreFailed if not all is stored."""
        if self._halves.unrecorded:
            return
        if self._progress is None:
            self._progress = self._halves.first_open(), self._halves.first_operation(), self._store.max_physical_offset
        half_offset, operation_offset, log_end = self._progress
        if log_end > self._store.confirmed.durable_offset:
            return
        if self._stored_progress != (half_offset, operation_offset):
            self._store.consumer_offsets.commit(TRANSACTION_GROUP, *HALF_QUEUE, half_offset)
            self._store.consumer_offsets.commit(TRANSACTION_GROUP, *OP_QUEUE, operation_offset)
            self._stored_progress = half_offset, operation_offset
        if log_end - self._checks.known_before >= _NOTE_BYTES:
            self._checks.note_complete(log_end)
        self._progress = None

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _shown(half: Record) -> bytes:
    """Return a half in its real queue, if that is valid."""
    try:
        return record_to_check(half, real_queue(half))
    except InvalidInput:
        return record_to_check(half, HALF_QUEUE)


def _not_there(end: EndOfTransaction) -> MessageNotFound:
    return MessageNotFound(
        f"this half message is not at offset {end.half.queue_offset} of {HALF_TOPIC}; it may be lost"
    )


def _is_commit_of(record: Record, half: Record) -> bool:
    """Return True if a record of the same unique key commits a half."""
    return bool(record.sys_flag & SYS_FLAG_TRANSACTION_COMMIT) and content_of(record) == content_of(half)
