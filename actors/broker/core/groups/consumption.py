"""How far groups have come on one broker: progress, time spans, who consumes what; resets and copies of offsets."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import islice

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.clients import GroupTable
from raymq.actors.broker.core.statistics import MINUTE, Statistics
from raymq.actors.errors import GroupNotFound, InvalidInput, QueueNotFound, StoreCorrupt, TopicNotFound
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.protocol import MessageQueue
from raymq.storage.steps import Steps, finish

#: So many queues are one step of work.
_QUEUES_AT_ONCE = 100
#: Of queues of which messages are read, up to four of each.
_TIMES_AT_ONCE = 20
#: Of queues that are reset, each by a line in the journal.
_RESET_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class ConsumedQueue:
    """One queue of a group. `committed` is None if it never committed; times are 0 where there is no message.

    `owner` is the member that fetches it, None where none does.
    """

    min_offset: int
    max_offset: int
    committed: int | None
    #: Store time of the last message that the group has consumed.
    last_consumed_ms: int
    owner: str | None

    @property
    def behind(self) -> int:
        """Messages that the group has not consumed."""
        return self.max_offset - max(self.committed or 0, self.min_offset)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Store times of a queue's first and last message, and of the last one that a group consumed; 0 for none.

    `delay_ms` is the age of the first message that the group has not consumed.
    """

    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


class Consumption:
    """Used on the broker's event loop; keeps nothing of its own."""

    def __init__(self, core: BrokerCore, groups: GroupTable, statistics: Statistics) -> None:
        self._core = core
        self._groups = groups
        self._statistics = statistics

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets in or subscribes to, its retry topic included; GroupNotFound."""
        return sorted({*self._core.consumed_topics(group), *self._subscribed(group)})

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic or subscribe to it."""
        self._core.topics.get(topic)
        offsets = self._core.store.consumer_offsets
        committed = {group for group in offsets.groups() if topic in offsets.topics_of(group)}
        return sorted(committed | {g for g in self._groups.consumer_groups() if topic in self._subscribed(g)})

    def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumedQueue]:
        """Each queue of a topic, or of all topics of the group; GroupNotFound, TopicNotFound."""
        return finish(self.reading_progress(group, topic))

    def reading_progress(self, group: str, topic: str | None = None) -> Steps[dict[MessageQueue, ConsumedQueue]]:
        """`progress` in steps; a topic that is deleted between two of them is left out."""
        self._check_group(group)
        if topic is not None:
            self._core.topics.get(topic)
        owners = self._groups.owners(group)
        found: dict[MessageQueue, ConsumedQueue] = {}
        for name in [topic] if topic is not None else self.topics_of(group):
            with contextlib.suppress(TopicNotFound, QueueNotFound):
                for queue_id in range(self._core.topics.get(name).read_queues):
                    if found and len(found) % _QUEUES_AT_ONCE == 0:
                        yield None
                    owner = owners.get((name, queue_id))
                    progress = self._of_queue(group, name, queue_id, owner)
                    found[MessageQueue(name, self._core.name, queue_id)] = progress
        return found

    def messages_per_second(self, group: str, topics: list[str]) -> float:
        """What a group was given of topics, as the mean of the last minute."""
        counters = (self._statistics.get_of(group, topic) for topic in topics)
        now = self._statistics.clock()
        return sum(counter.sums(now, MINUTE).messages_per_second for counter in counters if counter is not None)

    def reading_time_spans(self, group: str, topic: str) -> Steps[dict[MessageQueue, TimeSpan]]:
        """Each queue of a topic in time, in steps; TopicNotFound, also between two of them."""
        now_ms = int(self._core.clock() * 1000)
        spans: dict[MessageQueue, TimeSpan] = {}
        for queue_id in range(self._core.topics.get(topic).write_queues):
            if spans and len(spans) % _TIMES_AT_ONCE == 0:
                yield None
            low, high = self._core.bounds(topic, queue_id)
            committed = max(self._core.offsets.get(group, topic, queue_id) or 0, low)
            first_ms = self.store_time(topic, queue_id, low)
            consumed_ms = self.store_time(topic, queue_id, committed - 1) or first_ms
            next_ms = self.store_time(topic, queue_id, committed)
            spans[MessageQueue(topic, self._core.name, queue_id)] = TimeSpan(
                first_ms,
                self.store_time(topic, queue_id, high - 1),
                consumed_ms,
                now_ms - next_ms if next_ms else 0,
            )
        return spans

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at an offset was stored, in ms; 0 if there is none, or it cannot be read."""
        low, high = self._core.bounds(topic, queue_id)
        if not low <= offset < high:
            return 0
        try:
            with self._core.store.read(topic, queue_id, offset, 1, check_crc=False) as lease:
                messages = lease.messages()
        except StoreCorrupt:
            return 0
        return messages[0].store_timestamp_ms if messages else 0

    def resetting(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int,
        queue_id: int | None = None,
        offset: int | None = None,
        back_only: bool = False,
    ) -> Steps[dict[MessageQueue, int]]:
        """Send a group, running or not, to another place of a topic, in steps; where it begins now, by queue.

        First all places are looked for, then the group is sent there: who ends it before that has changed nothing, who
        ends it later has all queues sent.

        Args:
            timestamp_ms: the first message stored then or later; below 0: behind the last one.
            queue_id: only this queue.
            offset: this place instead of a time; needs `queue_id`.
            back_only: leave queues alone that a time would send forward; an offset is meant as it is.

        Raises:
            GroupNotFound, TopicNotFound, QueueNotFound: there is none.
            InvalidInput: an offset that the queue does not reach.
        """
        self._check_group(group)
        queues = range(self._core.topics.get(topic).read_queues) if queue_id is None else (queue_id,)
        targets = {}
        for number, each in enumerate(queues):
            if number and number % _QUEUES_AT_ONCE == 0:
                yield None
            low, high = self._core.bounds(topic, each)
            if offset is not None and queue_id is not None:
                if not low <= offset <= high:
                    raise InvalidInput("offset", f"{low}..{high}", offset)
                targets[each] = offset
            else:
                is_last = timestamp_ms < 0
                targets[each] = high if is_last else (yield from self._core.search_time(topic, each, timestamp_ms))
        only_back = back_only and offset is None
        waiting, begins = iter(targets.items()), dict[int, int]()
        try:
            while some := list(islice(waiting, _RESET_AT_ONCE)):
                if begins:
                    yield None
                for each, target in some:
                    begins[each] = self._reset(group, topic, each, target, only_back=only_back)
        except GeneratorExit:
            for each, target in targets.items():
                if each not in begins:
                    self._reset(group, topic, each, target, only_back=only_back)
            raise
        return {MessageQueue(topic, self._core.name, each): begin for each, begin in begins.items()}

    def _reset(self, group: str, topic: str, queue_id: int, target: int, *, only_back: bool) -> int:
        """Send a group to another place of a queue, or `only_back` to it; where it begins then."""
        committed = self._core.offsets.get(group, topic, queue_id)
        if only_back and committed is not None and committed < target:
            return committed
        self._core.reset_offset(group, topic, queue_id, target)
        return target

    def copying(self, source: str, target: str, topic: str | None) -> Steps[None]:
        """Give a group the offsets that another one has now, in a topic or in all but the retry topic, in steps.

        A topic that is deleted between two of them is left out, and so is a queue that its topic has no more.

        Raises:
            GroupNotFound: there is none, or no more.
        """
        self._check_group(source)
        self._check_group(target)
        offsets = self._core.store.consumer_offsets
        names = offsets.topics_of(source) if topic is None else [topic]
        had = [(name, offsets.of(source, name)) for name in names]
        each_queue = ((name, *each) for name, of_queues in had for each in of_queues.items())
        for number, (name, queue_id, offset) in enumerate(each_queue):
            if number and number % _RESET_AT_ONCE == 0:
                yield None
            if not name.startswith(RETRY_PREFIX) and self._core.has_queue(name, queue_id):
                self._core.reset_offset(target, name, queue_id, offset)

    def _of_queue(self, group: str, topic: str, queue_id: int, owner: str | None) -> ConsumedQueue:
        low, high = self._core.bounds(topic, queue_id)
        committed = self._core.offsets.get(group, topic, queue_id)
        last_ms = 0 if committed is None else self.store_time(topic, queue_id, committed - 1)
        return ConsumedQueue(low, high, committed, last_ms, owner)

    def _subscribed(self, group: str) -> list[str]:
        try:
            wanted = self._groups.consumer_group(group).subscriptions
        except GroupNotFound:
            return []
        return [topic for topic in wanted if topic in self._core.topics]

    def _check_group(self, group: str) -> None:
        self._core.consumed_topics(group)
