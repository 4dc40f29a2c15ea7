"""A broker's decisions around its store: which topics exist, what may be appended, what a group has committed.

Used from one thread, the broker's event loop. It knows no socket and no Ray; the wire's handlers and the actor's
methods both come here, so that every rule stands once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.actors.core.admission import Admission
from raymq.actors.core.idempotence import ProducerTable, StoredBatch
from raymq.actors.core.redelivery import Redelivery
from raymq.actors.core.schedule import Schedule
from raymq.actors.core.staging import Staging
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    PermissionDenied,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
)
from raymq.actors.naming import SCHEDULE_TOPIC, UNSENDABLE_TOPICS, check_group, check_topic, retry_topic
from raymq.actors.protocol import PERM_READ, PERM_WRITE, Placed, QueueData
from raymq.storage import producer_sequence
from raymq.storage.group_config import GroupConfig
from raymq.storage.record import Record
from raymq.storage.store import AppendResult, Store
from raymq.storage.topic_config import TopicConfig

MAX_QUEUES = 1024
#: Queues of a topic that its first message makes (RocketMQ's defaultTopicQueueNums of a producer).
AUTO_CREATED_QUEUES = 4


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a queue holds: offsets min..max-1. `last_store_timestamp_ms` is 0 where it is empty."""

    min_offset: int
    max_offset: int
    last_store_timestamp_ms: int


def _nobody_waits(_: Sequence[tuple[str, int]]) -> None:
    """What arrivals mean to a core without a service."""


class BrokerCore:
    """One broker over its open store. `clock` is wall time in seconds."""

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        auto_create_topics: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.store = store
        self.clock = clock
        self._auto_create_topics = auto_create_topics
        #: Called with the (topic, queue id) pairs that got messages; the service wakes parked fetches by it.
        self.on_arrival: Callable[[Sequence[tuple[str, int]]], None] = _nobody_waits
        self.schedule = Schedule(store, clock, self._append)
        self.redelivery = Redelivery(store, self.schedule, self._append)
        self.staging = Staging(store, self._append)
        self.producers = ProducerTable(clock)
        self.admission = Admission(time.monotonic)
        if store.topic_configs.get(SCHEDULE_TOPIC) is None:
            levels = self.schedule.levels
            store.topic_configs.put(TopicConfig(SCHEDULE_TOPIC, levels, levels))

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, QueueData]:
        """Every topic of this broker, as it is told to the name servers."""
        return {
            config.name: QueueData(self.name, config.read_queues, config.write_queues, config.perm)
            for config in self.store.topic_configs.all().values()
        }

    def create_topic(self, name: str, queues: int, *, ordered: bool = False, exclusive: bool = False) -> bool:
        """Make a topic of `queues` queues; False if it was there already.

        Args:
            exclusive: refuse a topic that exists with other settings (TopicExists) instead of changing it.
        """
        check_topic(name)
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidInput("queues", f"1..{MAX_QUEUES}", queues)
        known = self.store.topic_configs.get(name)
        if known is not None:
            if exclusive and (known.write_queues != queues or known.order != ordered):
                raise TopicExists(
                    f"topic {name} exists with {known.write_queues} queues, ordered={known.order}; "
                    f"asked for {queues}, ordered={ordered}",
                    remedy="ask for the same settings, or delete the topic first",
                )
            if (known.write_queues, known.read_queues, known.order) == (queues, queues, ordered):
                return False
        self.store.topic_configs.put(TopicConfig(name, queues, queues, PERM_READ | PERM_WRITE, ordered))
        return known is None

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with its messages' queues; False if there was none. A new one begins at offset 0."""
        if check_topic(name) in UNSENDABLE_TOPICS:
            raise PermissionDenied(f"{name} is one of the system's own topics")
        known = self.store.topic_configs.get(name) is not None
        if known:
            self.store.topic_configs.delete(name)
            self.store.delete_topic(name)
            self.producers.forget_topic(name)
        return known

    def topic(self, name: str) -> TopicConfig:
        """A topic's settings; TopicNotFound."""
        config = self.store.topic_configs.get(name)
        if config is None:
            raise TopicNotFound(
                f"topic {name} does not exist on {self.name}", remedy="create it with Admin.create_topic"
            )
        return config

    def ranges(self, topic: str) -> dict[int, QueueRange]:
        """What each of a topic's queues holds, written or not."""
        return {queue_id: self.range(topic, queue_id) for queue_id in range(self.topic(topic).read_queues)}

    def range(self, topic: str, queue_id: int) -> QueueRange:
        """What one queue holds; QueueNotFound if the topic has no such queue."""
        self._check_queue(topic, queue_id, self.topic(topic).read_queues)
        try:
            low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        except QueueNotFound:
            return QueueRange(0, 0, 0)
        if high == low:
            return QueueRange(low, high, 0)
        with self.store.read(topic, queue_id, high - 1, 1) as lease:
            last = lease.messages()[0].store_timestamp_ms
        return QueueRange(low, high, last)

    def offset_at_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first offset whose store time is at or after `timestamp_ms`, else the maximum."""
        if self.range(topic, queue_id).max_offset == 0:
            return 0
        return self.store.offset_at_time(topic, queue_id, timestamp_ms)

    # -- append --------------------------------------------------------------------------------------------------

    def append(
        self, topic: str, queue_id: int, records: memoryview, sizes: npt.NDArray[np.int32], *, delayed: bool = False
    ) -> Placed:
        """Store ready-made records of one queue. All or nothing: what is refused leaves no trace.

        Args:
            delayed: the records carry a DELAY property and wait in the schedule topic first; the result then names
                their places there.

        Raises:
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, StoreFull, StoreFailed.
        """
        self.check_writable(topic, queue_id)
        if delayed:
            return self.schedule.defer(records, sizes, (topic, queue_id))
        result = self._append(records, sizes, (topic, queue_id))
        queue_ids = np.full(len(sizes), queue_id, np.int32)
        return Placed(topic, queue_ids, result.queue_offsets, result.physical_offsets)

    def append_sequenced(
        self, topic: str, queue_id: int, records: memoryview, sizes: npt.NDArray[np.int32], *, delayed: bool = False
    ) -> Placed:
        """`append` for an idempotent producer: a batch that is here already is answered with the places it has.

        Raises:
            SequenceGap: the batch does not follow the last one of its producer in this queue. As `append` besides.
        """
        sequence = producer_sequence.read(records)
        if sequence.count != len(sizes):
            raise InvalidInput("records", f"the {sequence.count} of their sequence", len(sizes))
        lane = (sequence.producer, topic, queue_id)
        stored = self.producers.check(lane, sequence)
        if stored is not None:
            physical, _, _ = self.store.entries(stored.topic, stored.queue_id, stored.offset, stored.count)
            queue_ids = np.full(stored.count, stored.queue_id, np.int32)
            return Placed(stored.topic, queue_ids, stored.offset + np.arange(stored.count), physical)
        placed = self.append(topic, queue_id, records, sizes, delayed=delayed)
        first = StoredBatch(placed.topic, int(placed.queue_ids[0]), int(placed.queue_offsets[0]), len(sizes))
        self.producers.remember(lane, sequence, first)
        return placed

    def check_writable(self, topic: str, queue_id: int) -> None:
        """Raise what an append to that queue would raise, the records apart."""
        check_topic(topic)
        if topic in UNSENDABLE_TOPICS:
            raise InvalidInput("topic", "not one of the system's own topics", topic)
        if self._auto_create_topics and self.store.topic_configs.get(topic) is None:
            self.create_topic(topic, AUTO_CREATED_QUEUES)
        config = self.topic(topic)
        if not config.perm & PERM_WRITE:
            raise PermissionDenied(f"topic {topic} may not be written on {self.name}")
        self._check_queue(topic, queue_id, config.write_queues)

    def _append(
        self, records: bytes | memoryview, sizes: npt.NDArray[np.int32], *lanes: tuple[str, int]
    ) -> AppendResult:
        """Append records that belong to `lanes`, and wake who waits for them."""
        began = time.monotonic()
        result = self.store.append(records, sizes, lanes=lanes)
        self.admission.appended(began)
        self.on_arrival(lanes)
        return result

    def _check_queue(self, topic: str, queue_id: int, queues: int) -> None:
        if not 0 <= queue_id < queues:
            raise QueueNotFound(f"topic {topic} has queues 0..{queues - 1} on {self.name}, not {queue_id}")

    # -- groups --------------------------------------------------------------------------------------------------

    def ensure_group(self, group: str) -> bool:
        """Make a consumer group and its retry topic where they are missing; True if the retry topic is new."""
        check_group(group)
        if self.store.group_configs.get(group) is None:
            self.store.group_configs.put(GroupConfig(group))
        topic = retry_topic(group)
        if self.store.topic_configs.get(topic) is not None:
            return False
        self.store.topic_configs.put(TopicConfig(topic, 1, 1))
        return True

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember that `group` consumed everything below `offset`. Never back: a lower one changes nothing."""
        self.ensure_group(group)
        limit = self.range(topic, queue_id).max_offset
        if not 0 <= offset <= limit:
            raise InvalidInput("offset", f"0..{limit}", offset)
        known = self.store.consumer_offsets.get(group, topic, queue_id)
        if known is None or offset > known:
            self.store.consumer_offsets.commit(group, topic, queue_id, offset)

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """A group's offset in a queue, or None if it never committed one there."""
        return self.store.consumer_offsets.get(group, topic, queue_id)

    def consumed_topics(self, group: str) -> list[str]:
        """The topics that `group` has offsets in here, and its retry topic; GroupNotFound."""
        if self.store.group_configs.get(check_group(group)) is None:
            raise GroupNotFound(f"consumer group {group} does not exist on {self.name}")
        known = {*self.store.consumer_offsets.topics_of(group), retry_topic(group)}
        return sorted(topic for topic in known if self.store.topic_configs.get(topic) is not None)

    # -- single messages -----------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[Record]:
        """Messages of `topic` that carry `key` (or have it as unique key), newest first."""
        self.topic(topic)
        return self.store.query(topic, key, begin_ms, end_ms, limit)

    def view(self, physical_offset: int) -> Record:
        """The message at a place of the log; MessageNotFound, MessageExpired."""
        return self.store.read_at(physical_offset)
