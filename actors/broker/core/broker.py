"""Decide which topics exist, what may be appended and what groups have committed.

The module is used from one thread, the broker's event loop. It knows neither sockets nor Ray. The handlers of the wire
protocol and the methods of the actor both call it, so each rule exists once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.admission import Admission, AdmissionLimits
from raymq.actors.broker.core.appending.idempotence import ProducerKey, ProducerStateTable, StoredBatch
from raymq.actors.broker.core.appending.inbound_message import MessageKind
from raymq.actors.broker.core.appending.partial_batch import (
    batch_placement,
    physical_offsets,
    remaining_batch,
    to_stored_batch,
)
from raymq.actors.broker.core.appending.send_message_processor import SendMessageProcessor
from raymq.actors.broker.core.appending.staged_transaction_writer import StagedTransactionWriter
from raymq.actors.broker.core.backup_lease import BackupLeases
from raymq.actors.broker.core.coordinator_directory import CoordinatorDirectory
from raymq.actors.broker.core.copies.republisher import Republisher
from raymq.actors.broker.core.delay.delayed_message_relocator import DelayedMessageRelocator
from raymq.actors.broker.core.delay.recall_processor import RecallMessageProcessor
from raymq.actors.broker.core.delay.schedule_message_service import ScheduleMessageService
from raymq.actors.broker.core.delay.timer_message_store import TimerMessageStore
from raymq.actors.broker.core.groups.group_offsets import GroupOffsets
from raymq.actors.broker.core.groups.group_settings import GroupSettings
from raymq.actors.broker.core.groups.rebalance_lock_manager import RebalanceLockManager
from raymq.actors.broker.core.pop.pop_service import PopService
from raymq.actors.broker.core.redelivery.dead_letter_redrive import DeadLetterRedrive
from raymq.actors.broker.core.redelivery.redelivery import Redelivery
from raymq.actors.broker.core.system_topics import install, system_topics
from raymq.actors.broker.core.topic_manager import TopicManager
from raymq.actors.broker.core.transactions.transactional_message_service import TransactionalMessageService
from raymq.actors.broker.core.writes.transaction_coordinator import TransactionCoordinator
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    PermissionDenied,
    QueueNotFound,
    SequenceGap,
    StoreCorrupt,
    group_not_found,
)
from raymq.actors.naming import (
    AUTO_CREATED_QUEUES,
    SYSTEM_GROUP_PREFIX,
    UNSENDABLE_TOPICS,
    check_group,
    check_topic,
    retry_topic,
)
from raymq.actors.protocol import MESSAGE_TYPE, PERM_WRITE, DueReport, MessageType, RecordPositions
from raymq.storage.clock import boottime
from raymq.storage.cooperative_steps import Steps, map_steps
from raymq.storage.files.json_file import DataVersion
from raymq.storage.log.record_checker import CheckedRecord
from raymq.storage.log.retention import RetentionResult
from raymq.storage.records import producer_sequence
from raymq.storage.records import property_names as names
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.records.record import Buffer, Record, decode
from raymq.storage.store import AppendResult, Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.uptime_clock import UptimeClock

#: The type of the messages that a topic of a type takes; other topics take all.
_TYPES: Final = {
    "NORMAL": MessageType.NORMAL,
    "FIFO": MessageType.NORMAL,
    "DELAY": MessageType.DELAY,
    "TRANSACTION": MessageType.TRANSACTION,
}
#: How many queues `range_steps` reads per step, of each its newest message.
_RANGES_AT_ONCE: Final = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets of a queue, min_offset..max_offset-1.

    `last_store_timestamp_ms` is 0 if there is no readable message.
    """

    min_offset: int
    max_offset: int
    last_store_timestamp_ms: int


def _ignore_arrivals(_: Sequence[tuple[str, int]]) -> None:
    """Ignore arrivals, in a core without a service."""


class BrokerCore:
    """One broker over its open store.

    `clock` is wall time in seconds. `steady` is wall time without jumps (None: use `clock`). `elapsed` measures leases,
    `monotonic` how long an append takes.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        cluster: str = "raymq",
        auto_create_topics: bool = False,
        limits: AdmissionLimits | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
        elapsed: Callable[[], float] = boottime,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.store = store
        self.clock = clock
        self._steady = steady or clock
        self._read_barrier = store.read_barrier
        self._auto_create_topics = auto_create_topics
        #: Called with the (topic, queue id) pairs that got messages, which need not be confirmed yet. The service then
        #: wakes the parked fetches as soon as they can read these messages.
        self.on_arrival: Callable[[Sequence[tuple[str, int]]], None] = _ignore_arrivals
        #: The messages of which no copy could be made.
        self.set_aside = store.tables.quarantined
        self.admission = Admission(monotonic, limits)
        self._monotonic = monotonic
        copying = Republisher(store, self._append, self.set_aside, clock)
        self.schedule = ScheduleMessageService(store, self._steady, self._append, copying)
        self.timers = TimerMessageStore(name, store, clock, self._append, copying)
        self.transactions = TransactionalMessageService(store, clock, self._append, copying)
        self.recalls = RecallMessageProcessor(name, store, self.timers, clock, self._append)
        self.dead_letters = DeadLetterRedrive(store, self.ensure_group, copying, self._append, clock)
        self.locks = RebalanceLockManager(elapsed)
        self.group_settings = GroupSettings(store, self.ensure_group)
        self.offsets = GroupOffsets(store, self.group_settings, self.bounds, elapsed)
        own = system_topics(cluster, name, delay_levels=self.schedule.levels, auto_create=auto_create_topics)
        self.topics = TopicManager(name, store, {config.name for config in own}, self._forget_topic)
        self.redelivery = Redelivery(store, self.group_settings, self.schedule, self.locks, self._append, copying)
        self.counted_time = UptimeClock(store.tables.counted_time, elapsed)
        self.writes = TransactionCoordinator(store.tables.writes, self.counted_time)
        self.coordinators = CoordinatorDirectory(name, store.tables.coordinators, store.tables.known_brokers)
        self.stream_plans = store.tables.stream_plans
        self.pop = PopService(store, self._steady, self.redelivery.send_to_dlq, copying)
        self.producers = ProducerStateTable(self._steady)
        self.backups = BackupLeases(store, elapsed)
        hooks = {
            MessageKind.LEVEL: self.schedule.redirect_delayed,
            MessageKind.TIMER: self.timers.redirect_delayed,
            MessageKind.HALF: self.transactions.redirect_half,
        }
        self.send_processor = SendMessageProcessor(
            cluster, store, self.redelivery, self._append, hooks, auto_create_topics=auto_create_topics
        )
        try:
            self.staging = StagedTransactionWriter(store, self._append, copying, self._made_visible, elapsed)
            install(store.topic_configs, own)
        except BaseException:
            self.timers.log.close()
            raise
        self.rescue = DelayedMessageRelocator(
            store, self.timers, self.schedule, self.transactions, self.staging.chunks, self._append
        )
        #: The queues that `check_writable` passed, valid for that version of the topic table.
        self._open_topic_queues: tuple[DataVersion, set[tuple[str, int]]] = store.topic_configs.version, set()

    # -- topics --------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicConfig:
        """Return a topic's settings. Raise TopicNotFound if there is no such topic."""
        return self.topics.get(name)

    def range_steps(self, topic: str) -> Steps[dict[int, QueueRange]]:
        """Return the range of each of a topic's queues by queue id, in steps.

        Queues to which nothing was written are included. Raise TopicNotFound if the topic does not exist, also if it is
        deleted between two steps.
        """
        ranges = yield from map_steps(partial(self.range, topic), range(_queues(self.topic(topic))), _RANGES_AT_ONCE)
        return dict(enumerate(ranges))

    def range(self, topic: str, queue_id: int) -> QueueRange:
        """Return the range of one queue. Raise QueueNotFound if there is no such queue."""
        low, high = self.bounds(topic, queue_id)
        if high == low:
            return QueueRange(low, high, 0)
        try:
            with self.store.read(topic, queue_id, high - 1, 1) as lease:
                last = lease.messages()[0].store_timestamp_ms
        except StoreCorrupt:  # one damaged message must not hide the ranges of its topic
            last = 0
        return QueueRange(low, high, last)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return True if the topic exists here and has a queue of that id."""
        config = self.store.topic_configs.get(topic)
        return config is not None and 0 <= queue_id < _queues(config)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return a queue's minimum and maximum offset.

        Raise TopicNotFound or QueueNotFound if there is no such topic or queue.
        """
        self._check_queue(topic, queue_id, _queues(self.topic(topic)))
        try:
            return self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        except QueueNotFound:  # nothing was ever written to it
            return 0, 0

    def search_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> Steps[int]:
        """Return the first offset stored at or after `timestamp_ms`, else the maximum, as `Store.search_time`.

        With `boundary="upper"`, return the last offset whose store time is at or before `timestamp_ms`, else the
        minimum.
        """
        if self.bounds(topic, queue_id)[1] == 0:
            return 0
        return (yield from self.store.search_time(topic, queue_id, timestamp_ms, boundary=boundary))

    # -- append --------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        queue_id: int,
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        *,
        delayed: bool = False,
        sequenced: bool = False,
    ) -> RecordPositions:
        """Store encoded records of one queue, all or none of them.

        A refused append has no effect.

        Args:
            delayed: the records carry a delay level, a delivery time or the mark of a transaction, all of them the
                same of the three, and wait in another queue first; the result then names their positions in that queue.
            sequenced: they are an idempotent producer's; a repeated batch gets its first positions. If a crash has cut
                the batch, its missing messages are stored first; then its positions are two ranges or more.

        Raises:
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, StoreFull, StoreFailed.
            SequenceGap: the batch does not follow the last one of its producer in this queue, or its missing messages
                cannot be stored as a batch of their own.
        """
        store = partial(self._append_delayed if delayed else self._append_writable, (topic, queue_id))
        if not sequenced:
            return store(records, sizes)
        lane, sequence, known = self._numbered(records, len(sizes), (topic, queue_id), delayed=delayed)
        if known is None:
            placed = store(records, sizes)
            self.producers.remember(lane, sequence, to_stored_batch(placed))
            return placed
        here = known.total
        if here < len(sizes):
            placed = store(*remaining_batch(records, sizes, sequence, here))
            known = self.producers.complete(lane, to_stored_batch(placed))
        return batch_placement(known, partial(physical_offsets, self.store))

    def _append_writable(
        self, topic_queue: tuple[str, int], records: memoryview, sizes: npt.NDArray[np.int32]
    ) -> RecordPositions:
        self.check_writable(*topic_queue)
        result = self._append(records, sizes, topic_queue)
        queue_ids = np.full(len(sizes), topic_queue[1], np.int32)
        return RecordPositions(topic_queue[0], queue_ids, result.queue_offsets, result.physical_offsets)

    def _append_delayed(
        self, topic_queue: tuple[str, int], records: memoryview, sizes: npt.NDArray[np.int32]
    ) -> RecordPositions:
        self.store.check(records, sizes, topic_queue)
        told = decode(records, check_crc=False).properties
        if told.get(names.TRAN_MSG) == "true":
            self.check_writable(*topic_queue, MessageType.TRANSACTION)
            return self.transactions.defer(records, sizes, topic_queue)
        self.check_writable(*topic_queue, MessageType.DELAY)
        return (self.schedule if names.DELAY in told else self.timers).defer(records, sizes, topic_queue)

    def append_one(self, single: CheckedRecord, *, sequenced: bool = False) -> tuple[int, int]:
        """Do `append` for one record that `Store.check_one` has checked; return its two offsets.

        Args:
            sequenced: it is an idempotent producer's, as in `append`.
        """
        if not self.is_open(single.topic_queue):
            self.check_writable(*single.topic_queue)
        place = self.write_one(single, sequenced=sequenced)
        self.dispatch_one(single)
        return place

    def write_one(self, single: CheckedRecord, *, sequenced: bool = False) -> tuple[int, int]:
        """Do the first half of `append_one`: write the record to the log.

        `dispatch_one` has to follow.
        """
        numbered = self._numbered(single.record, 1, single.topic_queue, delayed=False) if sequenced else None
        if numbered is not None and (known := numbered[2]) is not None:
            return known.offset, int(physical_offsets(self.store, known)[0])
        began = self._monotonic()
        place = self.store.write(single)
        try:
            self.admission.appended(began)
            if numbered is not None:
                lane, sequence, _ = numbered
                self.producers.remember(lane, sequence, StoredBatch(*single.topic_queue, place[0], 1))
        except BaseException:
            self.store.dispatch()
            raise
        return place

    def dispatch_one(self, single: CheckedRecord) -> None:
        """Do the second half of `append_one`: update queue and index, wake readers."""
        is_new = self.store.dispatch()
        if is_new and not (self._read_barrier.is_active and self._read_barrier.is_blocked(single.topic_queue)):
            self.on_arrival((single.topic_queue,))

    def _numbered(
        self, records: Buffer, count: int, queue: tuple[str, int], *, delayed: bool
    ) -> tuple[ProducerKey, ProducerSequence, StoredBatch | None]:
        """Return a batch's producer key, its sequence, and its position if already stored.

        Raises:
            InvalidInput: its sequence is invalid or has another count; or the batch has several messages and is
                delayed.
            SequenceGap: it does not follow the last one, or exactly one of it and the stored batch of that sequence is
                delayed.
        """
        sequence = producer_sequence.read(records)
        if sequence.count != count:
            raise InvalidInput("records", f"as many as their sequence has, {sequence.count}", count)
        if delayed and count > 1:  # they may wait in several queues, and a crash may leave only some of them
            raise InvalidInput("records", "one at a time from an idempotent producer if they are delayed", count)
        lane = (sequence.producer, *queue)
        known = self.producers.check(lane, sequence)
        if known is not None and ((known.topic, known.queue_id) != queue) is not delayed:
            # A message whose delivery time had passed when it first came was stored at once; this is the same message.
            if delayed and names.DELAY not in decode(records).properties:
                return lane, sequence, known
            was, this = ("not delayed", "is") if delayed else ("delayed", "is not")
            raise SequenceGap(f"producer {lane[0]}: message {sequence.first} is {was}, this one {this}")
        return lane, sequence, known

    def _forget_topic(self, topic: str) -> None:
        """Drop the state of a deleted topic, whose stored data were deleted too."""
        for owner in (self.pop, self.producers, self.dead_letters):
            owner.forget_topic(topic)

    def is_open(self, topic_queue: tuple[str, int]) -> bool:
        """Return True if `check_writable` passed for this queue and would pass now.

        The result holds since topics were last changed.
        """
        topics, topic_queues = self._open_topic_queues
        is_known = topic_queue in topic_queues and topics is self.store.topic_configs.version
        return is_known and self.topics.permission & PERM_WRITE != 0

    def check_writable(self, topic: str, queue_id: int, kind: MessageType = MessageType.NORMAL) -> None:
        """Raise the errors of an append to that queue, except those about the records.

        `kind` is the type of the messages: NORMAL, DELAY or TRANSACTION.
        """
        config = self.store.topic_configs.get(topic)
        if config is None:
            check_topic(topic)
        if topic in UNSENDABLE_TOPICS:
            raise InvalidInput("topic", "not one of the system's own topics", topic)
        if config is None:
            if self._auto_create_topics:
                self.topics.check_topic_limit(topic)
                self.topics.create(topic, AUTO_CREATED_QUEUES)
            config = self.topic(topic)
        if not config.perm & self.topics.permission & PERM_WRITE:
            raise PermissionDenied(f"topic {topic} may not be written on {self.name}")
        self._check_queue(topic, queue_id, config.write_queues)
        allowed = _TYPES.get(config.attributes.get(MESSAGE_TYPE, ""))
        if allowed is not None and kind is not allowed:
            found = config.attributes[MESSAGE_TYPE]
            remedy = "begin a transaction with Producer.transaction" if allowed is MessageType.TRANSACTION else ""
            wanted = f"a topic that accepts messages of type {kind.value}"
            raise InvalidInput("topic", wanted, f"{topic}, which accepts only type {found}", remedy=remedy)
        if kind is not MessageType.NORMAL:
            return
        if self._open_topic_queues[0] is not self.store.topic_configs.version:
            self._open_topic_queues = self.store.topic_configs.version, set()
        self._open_topic_queues[1].add((topic, queue_id))

    def _append(
        self,
        records: bytes | memoryview,
        sizes: npt.NDArray[np.int32],
        *topic_queues: tuple[str, int],
        check_crc: bool = True,
        again: bool = False,
    ) -> AppendResult:
        """Append records that belong to `topic_queues`, and wake the requests parked on them."""
        began = self._monotonic()
        result = self.store.append(records, sizes, topic_queues=topic_queues, check_crc=check_crc, again=again)
        self.admission.appended(began)
        try:
            if self._read_barrier.is_active:  # records behind a read barrier arrive when the barrier is removed
                topic_queues = tuple(
                    topic_queue for topic_queue in topic_queues if not self._read_barrier.is_blocked(topic_queue)
                )
            self.on_arrival(topic_queues)
        except Exception:  # noqa: BLE001 - the messages are stored, even if waiting requests fail
            _log.exception("requests that wait for messages in %s could not be notified", topic_queues)
        return result

    def coordinator_of_write(self, transaction: str) -> str | None:
        """Return the broker that coordinates a staged write, or None if unknown here.

        Raises:
            InvalidInput: the name of the write is invalid. StoreCorrupt: the stored state of the write cannot be read.
        """
        if self.writes.transaction_status(transaction).decision is not None:
            return self.name
        return self.staging.table.coordinator_of(transaction)

    def _made_visible(self, topic_queues: Sequence[tuple[str, int]]) -> None:
        """Report the arrival of the messages that a commit made readable in these queues."""
        self.on_arrival(topic_queues)

    def _check_queue(self, topic: str, queue_id: int, queues: int) -> None:
        if not 0 <= queue_id < queues:
            raise QueueNotFound(f"topic {topic} has queues 0..{queues - 1} on {self.name}, not {queue_id}")

    def deliver_due(self) -> DueReport:
        """Deliver due messages to their real queues, within the limit of one pass.

        Raises:
            StoreFull, StoreFailed: nothing was skipped; the caller has to try again.
        """
        reports: list[DueReport] = []
        waits: list[int] = []
        failures: list[Exception] = []
        for keeper, clock in ((self.timers, self.clock), (self.schedule, self._steady)):
            try:
                report = keeper.deliver_due()
            except Exception as error:  # noqa: BLE001 - the other one has its turn in any case
                failures.append(error)
                continue
            reports.append(report)
            if report.next_due_ms is not None:
                waits.append(report.next_due_ms - int(clock() * 1000))
        if failures:
            raise failures[0]
        return DueReport(
            sum(report.delivered for report in reports),
            min((report.next_due_ms for report in reports if report.next_due_ms is not None), default=None),
            max(report.lateness_ms for report in reports),
            min(waits, default=None),
        )

    def delete_expired(self, *, asked: bool = False) -> RetentionResult:
        """Do `Store.delete_expired`, but keep every file that has delayed messages.

        This also holds if an administrator requested the deletion. The delayed messages are relocated to the end of the
        log in small steps, so files may be deleted some runs later. Files that a backup reads are kept, too.
        """
        self.rescue.want(self.store.next_expiry_offset())
        return self.store.delete_expired(
            asked=asked, rescue=lambda end: self.rescue.relocate_before(self.backups.limit(end))
        )

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, name: str) -> GroupConfig:
        """Return a consumer group's settings, or the defaults if the group does not exist."""
        return self.store.group_configs.get(check_group(name)) or GroupConfig(name)

    def make_group(self, name: str) -> GroupConfig:
        """Return a group's settings; create the group if it is missing, as in RocketMQ.

        A new group survives a kill of the process at once, and a crash of the machine a second later.

        Raises:
            GroupNotFound: the group does not exist, and the limit of automatically created groups is reached, or it
                has the name of a system group.
        """
        config = self.store.group_configs.get(check_group(name))
        if config is None:
            if name.startswith(SYSTEM_GROUP_PREFIX):
                raise GroupNotFound(f"{name} is a group of the brokers themselves")
            most = self.store.config.max_auto_groups
            if len(self.store.group_configs) >= most:
                raise GroupNotFound(
                    f"consumer group {name} does not exist on {self.name}, which has {most} groups",
                    remedy="Admin.delete_group deletes groups that are not needed, or raise max_auto_groups",
                )
            config = GroupConfig(name)
            self.store.group_configs.put_soon(config)
        return config

    def ensure_group(self, name: str) -> bool:
        """Do `make_group` and create the retry topic; return True if that was created.

        It raises the same errors as `make_group`.
        """
        topic, queues = retry_topic(name), self.make_group(name).retry_queues
        if queues <= 0 or self.store.topic_configs.get(topic) is not None:
            return False
        self.store.topic_configs.put_soon(TopicConfig(topic, queues, queues))
        return True

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group's offset in a queue, and wake the requests parked on that queue."""
        self.offsets.reset(group, topic, queue_id, offset)
        self.pop.forget(group, topic, queue_id)
        self.on_arrival([(topic, queue_id)])

    def consumed_topics(self, group: str) -> list[str]:
        """Return the existing topics in which `group` has offsets, and its retry topic.

        Raise GroupNotFound if there is no such group.
        """
        if self.store.group_configs.get(check_group(group)) is None:
            raise group_not_found(group, self.name)
        known = {*self.store.consumer_offsets.topics_of(group), retry_topic(group)}
        return sorted(topic for topic in known if self.store.topic_configs.get(topic) is not None)

    # -- single messages -----------------------------------------------------------------------------------------

    def search(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int, max_bytes: int | None = None
    ) -> Steps[list[Record]]:
        """Return messages with this key or unique key, newest first; see `Store.search`. Raise TopicNotFound."""
        self.topic(topic)
        return self.store.search(topic, key, begin_ms, end_ms, limit, max_bytes)

    def view(self, physical_offset: int) -> Record:
        """Return the message at a physical offset. Raise MessageNotFound or MessageExpired."""
        return self.store.read_at(physical_offset)


def _queues(config: TopicConfig) -> int:
    """Return the number of a topic's queues, including read-only and write-only ones."""
    return max(config.read_queues, config.write_queues)
