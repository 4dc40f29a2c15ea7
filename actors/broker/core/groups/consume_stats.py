"""Report and reset the progress of consumer groups on one broker.

It reports lags, time spans, and which groups consume which topics; it also copies offsets between groups.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry, FetchingMember
from raymq.actors.broker.core.statistics import MINUTE, Statistics
from raymq.actors.errors import GroupNotFound, InvalidInput, QueueNotFound, StoreCorrupt, TopicNotFound
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.protocol import MessageQueue
from raymq.storage.cooperative_steps import Steps
from raymq.storage.tables.in_flight_messages import ExpiryReason

#: How many queues one step handles;
_QUEUES_AT_ONCE = 100
#: how many if up to two messages of each queue are read;
_PROGRESS_AT_ONCE = 50
#: how many if up to four are read;
_TIMES_AT_ONCE = 20
#: and how many if offsets are copied, each with a line in the journal.
_COPIED_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class QueueLeft:
    """What a group has not finished in one queue.

    Attributes:
        lag: the number of messages after its committed offset.
        in_flight: how many were given out and are not finished; None if it is not known.
        ready: how many could be given out now, to a new member if the group has none.
        unfinished_ms: the age of the first message that is not finished; 0 if all are, None if it is not known.
    """

    lag: int
    in_flight: int | None
    ready: int
    unfinished_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The progress of a group in one queue.

    `committed` is None if the group never committed; times are 0 if there is no message. `owner` is the member that
    fetches the queue, or None. `left` is None if the group never committed.
    """

    min_offset: int
    max_offset: int
    committed: int | None
    #: Store time of the last message that the group has consumed.
    last_consumed_ms: int
    owner: str | None
    left: QueueLeft | None

    @property
    def lag(self) -> int:
        """Return how many messages the group has not consumed."""
        return self.max_offset - max(self.committed or 0, self.min_offset)


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """Store times of a queue's first, last and last consumed message; 0 for none.

    `delay_ms` is the age of the first message that the group has not consumed.
    """

    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


class ConsumeStats:
    """The progress of groups on one broker.

    Used on the broker's event loop; it has no state of its own.
    """

    def __init__(self, core: BrokerCore, groups: ClientRegistry, statistics: Statistics) -> None:
        self._core = core
        self._groups = groups
        self._statistics = statistics

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets or to which it subscribes.

        Its retry topic is included. Raise GroupNotFound if there is no such group.
        """
        return sorted({*self._core.consumed_topics(group), *self._subscribed(group)})

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic or subscribe to it."""
        self._core.topics.get(topic)
        offsets = self._core.store.consumer_offsets
        committed = {group for group in offsets.groups() if topic in offsets.topics_of(group)}
        return sorted(committed | {g for g in self._groups.consumer_groups() if topic in self._subscribed(g)})

    def progress_steps(self, group: str, topic: str | None = None) -> Steps[dict[MessageQueue, QueueLag]]:
        """Return the lag of each queue of one or all topics, in steps.

        A topic that is deleted between two steps is left out. Raise GroupNotFound or TopicNotFound if there is none.
        """
        self._core.group_settings.get(group)
        if topic is not None:
            self._core.topics.get(topic)
        owners = self._groups.owners(group)
        found: dict[MessageQueue, QueueLag] = {}
        for name in [topic] if topic is not None else self.topics_of(group):
            with contextlib.suppress(TopicNotFound, QueueNotFound):
                for queue_id in range(self._core.topics.get(name).read_queues):
                    if found and len(found) % _PROGRESS_AT_ONCE == 0:
                        yield None
                    owner = owners.get((name, queue_id))
                    progress = self._of_queue(group, name, queue_id, owner)
                    found[MessageQueue(name, self._core.name, queue_id)] = progress
        return found

    def message_states_steps(self, topic: str, queue_id: int, offset: int) -> Steps[dict[str, str]]:
        """Return each consuming group's state of the message at an offset, in steps.

        The states are "finished", "in flight" (given out and not finished), "ready" (could be given out now, or will be
        after those before it), "waiting" (its retry waits for its time) and "unknown" (the group never committed, or
        has no member: fetches of pull consumers name no group). A filter that excludes the message is not considered.

        Raises:
            TopicNotFound, QueueNotFound: there is none.
        """
        self._core.bounds(topic, queue_id)
        found: dict[str, str] = {}
        for number, group in enumerate(self.groups_of(topic)):
            if number and number % _QUEUES_AT_ONCE == 0:
                yield None
            found[group] = self._state(group, topic, queue_id, offset)
        return found

    def _state(self, group: str, topic: str, queue_id: int, offset: int) -> str:
        committed = self._core.offsets.get(group, topic, queue_id)
        if (unacked := self._core.pop.unacked(group, topic, queue_id)) is not None:
            delivery = unacked.deliveries.get(offset)
            if delivery is None:
                return "finished" if offset < unacked.next_offset else "ready"
            if delivery.visible_at_ms <= int(self._core.clock() * 1000):
                return "finished" if delivery.is_final_delivery else "ready"  # the dead letter goes on instead of it
            return "waiting" if delivery.ending == ExpiryReason.FAILED else "in flight"
        if committed is None:
            return "unknown"
        if offset < committed:
            return "finished"
        if not self._groups.has_members(group):
            return "unknown"
        owner = self._groups.owners(group).get((topic, queue_id))
        return "in flight" if owner is not None and offset < owner.position.offset else "ready"

    def messages_per_second(self, group: str, topics: list[str]) -> float:
        """Return the rate at which a group received messages of topics.

        It is the mean of the last minute.
        """
        counters = (self._statistics.get_of(group, topic) for topic in topics)
        now = self._statistics.clock()
        return sum(counter.sums(now, MINUTE).messages_per_second for counter in counters if counter is not None)

    def time_span_steps(self, group: str, topic: str) -> Steps[dict[MessageQueue, QueueTimeSpan]]:
        """Return the time span of each queue of a topic, in steps.

        Raise TopicNotFound if there is no such topic, also if it is deleted between two steps.
        """
        now_ms = int(self._core.clock() * 1000)
        spans: dict[MessageQueue, QueueTimeSpan] = {}
        for queue_id in range(self._core.topics.get(topic).write_queues):
            if spans and len(spans) % _TIMES_AT_ONCE == 0:
                yield None
            low, high = self._core.bounds(topic, queue_id)
            committed = max(self._core.offsets.get(group, topic, queue_id) or 0, low)
            first_ms = self.store_time(topic, queue_id, low)
            consumed_ms = self.store_time(topic, queue_id, committed - 1) or first_ms
            next_ms = self.store_time(topic, queue_id, committed)
            spans[MessageQueue(topic, self._core.name, queue_id)] = QueueTimeSpan(
                first_ms,
                self.store_time(topic, queue_id, high - 1),
                consumed_ms,
                now_ms - next_ms if next_ms else 0,
            )
        return spans

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when the message at an offset was stored, in ms.

        The result is 0 if there is none, or if it cannot be read.
        """
        low, high = self._core.bounds(topic, queue_id)
        if not low <= offset < high:
            return 0
        try:
            with self._core.store.read(topic, queue_id, offset, 1, check_crc=False) as lease:
                messages = lease.messages()
        except StoreCorrupt:
            return 0
        return messages[0].store_timestamp_ms if messages else 0

    def reset_steps(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int,
        queue_id: int | None = None,
        offset: int | None = None,
        back_only: bool = False,
    ) -> Steps[dict[MessageQueue, int]]:
        """Reset a group's offsets in a topic, in steps; return the new offsets by queue.

        The group may be running. First all target offsets are determined, then the group is reset in one step.

        Args:
            timestamp_ms: reset to the first message stored at or after this time; below 0: after the last message.
            queue_id: only this queue.
            offset: this offset instead of a time; needs `queue_id`.
            back_only: skip queues that a time would move forward; an explicit offset is used as it is.

        Raises:
            GroupNotFound, TopicNotFound, QueueNotFound: there is none.
            InvalidInput: the offset is outside of the queue.
        """
        self._core.group_settings.get(group)
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
        return {
            MessageQueue(topic, self._core.name, each): self._reset(group, topic, each, target, only_back=only_back)
            for each, target in targets.items()
        }

    def _reset(self, group: str, topic: str, queue_id: int, target: int, *, only_back: bool) -> int:
        """Reset a group's offset in a queue, and return the resulting offset.

        With `only_back`, an offset before `target` stays.
        """
        committed = self._core.offsets.get(group, topic, queue_id)
        if only_back and committed is not None and committed < target:
            return committed
        self._core.reset_offset(group, topic, queue_id, target)
        return target

    def copy_offsets_steps(self, source: str, target: str, topic: str | None) -> Steps[None]:
        """Copy the current offsets of one group to another one, in steps.

        Only those of `topic` are copied, or those of all topics except retry topics. A topic that is deleted between
        two steps is left out, and so is a queue that its topic no longer has.

        Raises:
            GroupNotFound: a group does not exist, or was deleted meanwhile.
        """
        self._core.group_settings.get(source)
        self._core.group_settings.get(target)
        offsets = self._core.store.consumer_offsets
        names = offsets.topics_of(source) if topic is None else [topic]
        had = [(name, offsets.of(source, name)) for name in names]
        each_queue = ((name, *each) for name, of_queues in had for each in of_queues.items())
        for number, (name, queue_id, offset) in enumerate(each_queue):
            if number and number % _COPIED_AT_ONCE == 0:
                yield None
            if not name.startswith(RETRY_PREFIX) and self._core.has_queue(name, queue_id):
                self._core.reset_offset(target, name, queue_id, offset)

    def _of_queue(self, group: str, topic: str, queue_id: int, owner: FetchingMember | None) -> QueueLag:
        low, high = self._core.bounds(topic, queue_id)
        committed = self._core.offsets.get(group, topic, queue_id)
        last_ms = 0 if committed is None else self.store_time(topic, queue_id, committed - 1)
        client_id = None if owner is None else owner.client_id
        return QueueLag(low, high, committed, last_ms, client_id, self.left(group, topic, queue_id, owner))

    def left(self, group: str, topic: str, queue_id: int, owner: FetchingMember | None) -> QueueLeft | None:
        """Return what a group has not finished in a queue.

        None if it never committed there.

        The number in flight is not known if the group has no member and nothing is lent: pull consumers are no members,
        and may have read any message after the committed offset.
        """
        low, high = self._core.bounds(topic, queue_id)
        committed = self._core.offsets.get(group, topic, queue_id)
        if committed is None:
            return None
        begin = max(committed, low)
        if (unacked := self._core.pop.unacked(group, topic, queue_id)) is not None:
            in_flight: int | None = len(unacked.deliveries) - unacked.ready_count
            ready = unacked.ready_count + max(0, high - unacked.next_offset)
        elif begin < high and not self._groups.has_members(group):
            in_flight, ready = None, high - begin
        else:
            given_out = begin if owner is None else min(high, max(begin, owner.position.offset))
            in_flight, ready = given_out - begin, high - given_out
        unfinished_ms: int | None = 0
        if begin < high:
            stored_ms = self.store_time(topic, queue_id, begin)
            unfinished_ms = max(0, int(self._core.clock() * 1000) - stored_ms) if stored_ms else None
        return QueueLeft(high - begin, in_flight, ready, unfinished_ms)

    def _subscribed(self, group: str) -> list[str]:
        try:
            subscriptions = self._groups.consumer_group(group).subscriptions
        except GroupNotFound:
            return []
        return [topic for topic in subscriptions if topic in self._core.topics]
