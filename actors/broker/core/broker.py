"""A broker's decisions around its store: which topics exist, what may be appended, what a group has committed.

Used from one thread, the broker's event loop. It knows no socket and no Ray; the wire's handlers and the actor's
methods both come here, so that every rule stands once.
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
from raymq.actors.broker.core.appending.cut_batch import physical_offsets, placed_at, rest_of, stored_batch
from raymq.actors.broker.core.appending.foreign_send import Accepting
from raymq.actors.broker.core.appending.idempotence import Lane as ProducerLane
from raymq.actors.broker.core.appending.idempotence import ProducerTable, StoredBatch
from raymq.actors.broker.core.appending.inbound_message import MessageKind
from raymq.actors.broker.core.appending.staging import Staging
from raymq.actors.broker.core.backups import Backups
from raymq.actors.broker.core.copies.copying import Copying
from raymq.actors.broker.core.delay.recall import Recall
from raymq.actors.broker.core.delay.rescue import Rescue
from raymq.actors.broker.core.delay.schedule import Schedule
from raymq.actors.broker.core.delay.timers import Timers
from raymq.actors.broker.core.groups.locks import QueueLocks
from raymq.actors.broker.core.groups.offsets import GroupOffsets
from raymq.actors.broker.core.groups.settings import GroupSettings
from raymq.actors.broker.core.known_homes import KnownHomes
from raymq.actors.broker.core.pop.pop import Pop
from raymq.actors.broker.core.redelivery.dead_letters import DeadLetters
from raymq.actors.broker.core.redelivery.redelivery import Redelivery
from raymq.actors.broker.core.system_topics import install, system_topics
from raymq.actors.broker.core.topics import Topics
from raymq.actors.broker.core.writes.deciding import WriteHome
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    PermissionDenied,
    QueueNotFound,
    SequenceGap,
    StoreCorrupt,
    group_not_found,
)
from raymq.actors.naming import AUTO_CREATED_QUEUES, UNSENDABLE_TOPICS, check_group, check_topic, retry_topic
from raymq.actors.protocol import PERM_WRITE, DueReport, Placed
from raymq.storage.clock import boottime
from raymq.storage.counted_time import CountedTime
from raymq.storage.files.json_file import DataVersion
from raymq.storage.log.checking import Single
from raymq.storage.log.retention import Deleted
from raymq.storage.log.writing import Stored
from raymq.storage.records import producer_sequence
from raymq.storage.records import property_names as names
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.records.record import Buffer, Record, decode
from raymq.storage.steps import Steps, finish, mapped
from raymq.storage.store import AppendResult, Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.homes import Homes
from raymq.storage.tables.members import Members
from raymq.storage.tables.set_aside import SetAsideFile
from raymq.storage.tables.stream_plans import StreamPlans
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.tables.write_records import WriteRecords

#: So many queues are looked at in a step, of each its newest message.
_RANGES_AT_ONCE: Final = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a queue holds: offsets min..max-1. `last_store_timestamp_ms` is 0 where nothing is to be read."""

    min_offset: int
    max_offset: int
    last_store_timestamp_ms: int


def _nobody_waits(_: Sequence[tuple[str, int]]) -> None:
    """What arrivals mean to a core without a service."""


class BrokerCore:
    """One broker over its open store.

    `clock` is wall time in seconds, `steady` the same without its steps (None: it has none), `elapsed` measures leases,
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
        self._veils = store.veils
        self._auto_create_topics = auto_create_topics
        #: Called with the (topic, queue id) pairs that got messages, which need not be confirmed yet; the service wakes
        #: parked fetches by it, once they can read them.
        self.on_arrival: Callable[[Sequence[tuple[str, int]]], None] = _nobody_waits
        #: What no copy could be made of.
        self.set_aside = SetAsideFile(store.directory / "raymq" / "set_aside.jsonl")
        copying = Copying(store, self._append, self.set_aside, clock)
        self.schedule = Schedule(store, self._steady, self._append, copying)
        self.timers = Timers(name, store, clock, self._append, copying)
        self.rescue = Rescue(store, self.timers, self.schedule, self._append)
        self.recalls = Recall(name, store, self.timers, clock, self._append)
        self.dead_letters = DeadLetters(store, self.ensure_group, copying, self._append, clock)
        self.locks = QueueLocks(elapsed)
        self.group_settings = GroupSettings(store, self.ensure_group)
        self.offsets = GroupOffsets(store, self.group_settings, self.bounds, elapsed)
        own = system_topics(cluster, name, delay_levels=self.schedule.levels, auto_create=auto_create_topics)
        self.topics = Topics(name, store, {config.name for config in own}, self._forget_topic)
        self.redelivery = Redelivery(store, self.group_settings, self.schedule, self.locks, self._append, copying)
        self.staging = Staging(store, self._append, copying, self._unveiled, elapsed)
        self.counted_time = CountedTime(store.directory, elapsed)
        self.writes = WriteHome(WriteRecords(store.directory), self.counted_time)
        self.homes = KnownHomes(name, Homes(store.directory), Members(store.directory))
        self.stream_plans = StreamPlans(store.directory)
        self.pop = Pop(store, self._steady, self.redelivery.bury, copying)
        self.producers = ProducerTable(self._steady)
        self.backups = Backups(store, elapsed)
        self.admission = Admission(monotonic, limits)
        self._monotonic = monotonic
        self.accepting = Accepting(
            cluster, store, self.schedule, self.redelivery, self._append, auto_create_topics=auto_create_topics
        )
        self.accepting.detours[MessageKind.TIMER] = self.timers.detour
        try:
            install(store.topic_configs, own)
        except BaseException:
            self.timers.log.close()
            raise
        #: The queues that are found to be writable, as long as the topics are of that version.
        self._open_topic_queues: tuple[DataVersion, set[tuple[str, int]]] = store.topic_configs.version, set()

    # -- topics --------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicConfig:
        """A topic's settings; TopicNotFound."""
        return self.topics.get(name)

    def reading_ranges(self, topic: str) -> Steps[dict[int, QueueRange]]:
        """What each of a topic's queues holds, written or not, in steps; TopicNotFound, also between two of them."""
        ranges = yield from mapped(partial(self.range, topic), range(_queues(self.topic(topic))), _RANGES_AT_ONCE)
        return dict(enumerate(ranges))

    def range(self, topic: str, queue_id: int) -> QueueRange:
        """What one queue holds; QueueNotFound if the topic has no such queue."""
        low, high = self.bounds(topic, queue_id)
        if high == low:
            return QueueRange(low, high, 0)
        try:
            with self.store.read(topic, queue_id, high - 1, 1) as lease:
                last = lease.messages()[0].store_timestamp_ms
        except StoreCorrupt:  # one damaged message does not hide what is known of its topic
            last = 0
        return QueueRange(low, high, last)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the topic exists here and has a queue of that id."""
        config = self.store.topic_configs.get(topic)
        return config is not None and 0 <= queue_id < _queues(config)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """A queue's minimum and maximum offset; TopicNotFound, QueueNotFound."""
        self._check_queue(topic, queue_id, _queues(self.topic(topic)))
        try:
            return self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        except QueueNotFound:  # nothing was ever written to it
            return 0, 0

    def offset_at_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The first offset whose store time is at or after `timestamp_ms`, else the maximum.

        With `boundary="upper"` the last offset whose store time is at or before it, else the minimum.
        """
        return finish(self.search_time(topic, queue_id, timestamp_ms, boundary=boundary))

    def search_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> Steps[int]:
        """`offset_at_time` in steps, as `Store.search_time`."""
        if self.bounds(topic, queue_id)[1] == 0:
            return 0
        return (yield from self.store.search_time(topic, queue_id, timestamp_ms, boundary=boundary))

    # -- append --------------------------------------------------------------------------------------------------

    def append(
        self, topic: str, queue_id: int, records: memoryview, sizes: npt.NDArray[np.int32], *, delayed: bool = False
    ) -> Placed:
        """Store ready-made records of one queue. All or nothing: what is refused leaves no trace.

        Args:
            delayed: the records carry a delay level or a time, all the same of the two, and wait elsewhere first; the
                result then names their places there.

        Raises:
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, StoreFull, StoreFailed.
        """
        self.check_writable(topic, queue_id)
        if delayed:
            self._check_records(records, sizes, (topic, queue_id))
            keeper = self.schedule if names.DELAY in decode(records, check_crc=False).properties else self.timers
            return keeper.defer(records, sizes, (topic, queue_id))
        result = self._append(records, sizes, (topic, queue_id))
        queue_ids = np.full(len(sizes), queue_id, np.int32)
        return Placed(topic, queue_ids, result.queue_offsets, result.physical_offsets)

    def _check_records(self, records: memoryview, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> None:
        """What an append looks at, of records that are not appended as they are; InvalidInput: they are not sound."""
        if sizes.tolist() == [len(records)] and self.store.check_one(records).topic_queue == topic_queue:
            return  # as nearly always, for a tenth of the time
        self.store.check(records, sizes, topic_queue)

    def append_one(self, single: Single, stored: Stored | None = None, *, is_open: bool = False) -> tuple[int, int]:
        """`append` for one record that comes at once and that `Store.check_one` has taken apart.

        Args:
            stored: as in `Store.append_one`.
            is_open: the caller has just asked whether its queue is.

        Returns:
            its queue offset and its physical offset.
        """
        topic_queue = single.topic_queue
        if not is_open and not self.is_open(topic_queue):
            self.check_writable(*topic_queue)
        began = self._monotonic()
        place = self.store.append_one(single, stored)
        self.admission.appended(began)
        if not self._veils.are_down or not self._veils.is_down(topic_queue):
            self.on_arrival((topic_queue,))
        return place

    def append_sequenced(
        self, topic: str, queue_id: int, records: memoryview, sizes: npt.NDArray[np.int32], *, delayed: bool = False
    ) -> Placed:
        """`append` for an idempotent producer: a batch that is here already is answered with the places it has.

        Of one that a death has cut what is missing is stored first; then its places are two runs, or more.

        Raises:
            SequenceGap: the batch does not follow the last one of its producer in this queue, or what is missing of it
                cannot be stored by itself. As `append` besides.
        """
        lane, sequence, known = self._numbered(records, len(sizes), (topic, queue_id), delayed=delayed)
        if known is None:
            placed = self.append(topic, queue_id, records, sizes, delayed=delayed)
            self.producers.remember(lane, sequence, stored_batch(placed))
            return placed
        here = known.total
        if here < len(sizes):
            rest, rest_sizes = rest_of(records, sizes, sequence, here)
            placed = self.append(topic, queue_id, rest, rest_sizes, delayed=delayed)
            known = self.producers.complete(lane, stored_batch(placed))
        return placed_at(known, partial(physical_offsets, self.store))

    def append_one_sequenced(
        self, single: Single, stored: Stored | None = None, *, is_open: bool = False
    ) -> tuple[int, int]:
        """`append_one` for an idempotent producer, as `append_sequenced`.

        Args:
            stored: told the place also of a record that is here already.
            is_open: as in `append_one`.
        """
        lane, sequence, known = self._numbered(single.record, 1, single.topic_queue, delayed=False)
        if known is not None:
            place = known.offset, int(physical_offsets(self.store, known)[0])
            if stored is not None:
                stored(*place)
            return place
        topic, queue_id = single.topic_queue

        def told(queue_offset: int, physical_offset: int) -> None:
            try:
                assert stored is not None
                stored(queue_offset, physical_offset)
            except BaseException:  # it is stored, whether its producer comes to know it or not
                self.producers.remember(lane, sequence, StoredBatch(topic, queue_id, queue_offset, 1))
                raise

        place = self.append_one(single, told if stored is not None else None, is_open=is_open)
        self.producers.remember(lane, sequence, StoredBatch(topic, queue_id, place[0], 1))
        return place

    def _numbered(
        self, records: Buffer, count: int, queue: tuple[str, int], *, delayed: bool
    ) -> tuple[ProducerLane, ProducerSequence, StoredBatch | None]:
        """The lane and the number of a batch of an idempotent producer, and where it lies if it is here already.

        Raises:
            InvalidInput: its number is none, or of another count; or it is more than one message, and delayed.
            SequenceGap: it does not follow the last one, or it waits its delay and the one of that number did not.
        """
        sequence = producer_sequence.read(records)
        if sequence.count != count:
            raise InvalidInput("records", f"the {sequence.count} of their sequence", count)
        if delayed and count > 1:  # they may wait in several queues, and a death may leave some
            raise InvalidInput("records", "one at a time from an idempotent producer where it is delayed", count)
        lane = (sequence.producer, *queue)
        known = self.producers.check(lane, sequence)
        if known is not None and ((known.topic, known.queue_id) != queue) is not delayed:
            # What names a time that had passed when it came first was stored at once, and is the same all the same.
            if delayed and names.DELAY not in decode(records).properties:
                return lane, sequence, known
            was, this = ("not delayed", "is") if delayed else ("delayed", "is not")
            raise SequenceGap(f"producer {lane[0]}: message {sequence.first} is {was}, this one {this}")
        return lane, sequence, known

    def _forget_topic(self, topic: str) -> None:
        """The topic was deleted, and with it what the store has of it."""
        for owner in (self.pop, self.producers, self.dead_letters):
            owner.forget_topic(topic)

    def is_open(self, topic_queue: tuple[str, int]) -> bool:
        """Whether `check_writable` has let that queue pass since topics were changed last, and would now."""
        topics, topic_queues = self._open_topic_queues
        is_known = topic_queue in topic_queues and topics is self.store.topic_configs.version
        return is_known and self.topics.permission & PERM_WRITE != 0

    def check_writable(self, topic: str, queue_id: int) -> None:
        """Raise what an append to that queue would raise, the records apart."""
        config = self.store.topic_configs.get(topic)
        if config is None:
            check_topic(topic)
        if topic in UNSENDABLE_TOPICS:
            raise InvalidInput("topic", "not one of the system's own topics", topic)
        if config is None:
            if self._auto_create_topics:
                self.topics.check_room(topic)
                self.topics.create(topic, AUTO_CREATED_QUEUES)
            config = self.topic(topic)
        if not config.perm & self.topics.permission & PERM_WRITE:
            raise PermissionDenied(f"topic {topic} may not be written on {self.name}")
        self._check_queue(topic, queue_id, config.write_queues)
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
        """Append records that belong to `topic_queues`, and wake who waits for them."""
        began = self._monotonic()
        result = self.store.append(records, sizes, topic_queues=topic_queues, check_crc=check_crc, again=again)
        self.admission.appended(began)
        try:
            if self._veils.are_down:  # what is behind a veil arrives when that is lifted
                topic_queues = tuple(
                    topic_queue for topic_queue in topic_queues if not self._veils.is_down(topic_queue)
                )
            self.on_arrival(topic_queues)
        except Exception:  # noqa: BLE001 - it is stored, whatever becomes of those who wait for it
            _log.exception("arrivals in %s could not be told", topic_queues)
        return result

    def home_of_write(self, transaction: str) -> str | None:
        """The broker that decides about a staged write, if it is known here.

        Raises:
            InvalidInput: no write can be called so. StoreCorrupt: what is known of it cannot be read.
        """
        if self.writes.look(transaction).decision is not None:
            return self.name
        return self.staging.home_of(transaction)

    def _unveiled(self, topic_queues: Sequence[tuple[str, int]]) -> None:
        """What a commit has appended to these queues may be read from now on."""
        self.on_arrival(topic_queues)

    def _check_queue(self, topic: str, queue_id: int, queues: int) -> None:
        if not 0 <= queue_id < queues:
            raise QueueNotFound(f"topic {topic} has queues 0..{queues - 1} on {self.name}, not {queue_id}")

    def deliver_due(self) -> DueReport:
        """Put everything whose time has come into its real queue, as much as one pass may.

        Raises:
            StoreFull, StoreFailed: nothing was skipped; it is to be tried again.
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

    def delete_expired(self, *, asked: bool = False) -> Deleted:
        """`Store.delete_expired`: no file goes in which somebody still waits for his time, whoever asks for it.

        What waits is stored anew in small steps, so files may go some runs later than they might; and while a backup
        reads them.
        """
        self.rescue.want(self.store.leaving_before())
        return self.store.delete_expired(asked=asked, rescue=lambda end: self.rescue.up_to(self.backups.limit(end)))

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, name: str) -> GroupConfig:
        """A consumer group's settings, those of a new one where it is not there."""
        return self.store.group_configs.get(check_group(name)) or GroupConfig(name)

    def make_group(self, name: str) -> GroupConfig:
        """`group`, made where it is not there, as in RocketMQ. It survives a kill at once, the machine a second later.

        Raises:
            GroupNotFound: it is not there, and as many are as may be made so.
        """
        config = self.store.group_configs.get(check_group(name))
        if config is None:
            most = self.store.config.max_auto_groups
            if len(self.store.group_configs) >= most:
                raise GroupNotFound(
                    f"consumer group {name} does not exist on {self.name}, where {most} groups are",
                    remedy="Admin.delete_group deletes those that are not needed, or raise max_auto_groups",
                )
            config = GroupConfig(name)
            self.store.group_configs.put_soon(config)
        return config

    def ensure_group(self, name: str) -> bool:
        """`make_group` with its retry topic; True if that is new. Raises the same."""
        topic, queues = retry_topic(name), self.make_group(name).retry_queues
        if queues <= 0 or self.store.topic_configs.get(topic) is not None:
            return False
        self.store.topic_configs.put_soon(TopicConfig(topic, queues, queues))
        return True

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Send a group to another place of a queue; who waits for that queue learns it at once."""
        self.offsets.reset(group, topic, queue_id, offset)
        self.pop.forget(group, topic, queue_id)
        self.on_arrival([(topic, queue_id)])

    def consumed_topics(self, group: str) -> list[str]:
        """The topics that `group` has offsets in here, and its retry topic; GroupNotFound."""
        if self.store.group_configs.get(check_group(group)) is None:
            raise group_not_found(group, self.name)
        known = {*self.store.consumer_offsets.topics_of(group), retry_topic(group)}
        return sorted(topic for topic in known if self.store.topic_configs.get(topic) is not None)

    # -- single messages -----------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[Record]:
        """Messages of `topic` that carry `key` (or have it as unique key), newest first."""
        return finish(self.search(topic, key, begin_ms, end_ms, limit))

    def search(
        self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int, max_bytes: int | None = None
    ) -> Steps[list[Record]]:
        """`query` in steps, see `Store.search`; TopicNotFound."""
        self.topic(topic)
        return self.store.search(topic, key, begin_ms, end_ms, limit, max_bytes)

    def view(self, physical_offset: int) -> Record:
        """The message at a place of the log; MessageNotFound, MessageExpired."""
        return self.store.read_at(physical_offset)


def _queues(config: TopicConfig) -> int:
    """How many queues a topic has, those included that are only read or only written."""
    return max(config.read_queues, config.write_queues)
