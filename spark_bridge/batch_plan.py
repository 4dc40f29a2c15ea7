"""The plan of one batch of a stream: the offset ranges that the batch reads.

A plan is made from the previous batch and current offsets, without I/O and without a clock. Nothing is skipped
silently: if messages after the last batch are missing, planning raises an error. For a stream with
`on_data_loss="skip"` the plan continues after the missing messages and records what it skipped.

The brokers store a plan as opaque bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from raymq.actors.errors import ProtocolError, RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.stream_plan_commands import QueueBounds, TopicBounds
from raymq.client.bulk.range_reader import BrokerTopic

#: The version of the encoding without and with skipped messages. Other versions are refused.
_FORM: Final = 2
_FORM_WITH_SKIPPED: Final = 3
#: Identifies the messages that the offsets of a topic on a broker belong to: the topic's id on that broker, and the
#: broker's recovery epoch.
TopicEpoch = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end offsets of a run that stops by itself.

    They are the ends of the queues at the time when the first batch of the run was planned.
    """

    run: str
    ends: Mapping[MessageQueue, int]


class SkippedCount(NamedTuple):
    """The messages that a stream has skipped in one queue since the stream began.

    Attributes:
        messages: how many stored messages were skipped unread; messages of a deleted topic are not counted.
        reason: the reason for the latest skip.
    """

    messages: int
    reason: str


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The messages of one batch.

    Attributes:
        ranges: the first offset and the offset after the last message, of each queue. Empty ranges are included,
            because the next batch continues at their ends.
        origins: the topic id and recovery epoch that the offsets belong to, by topic and broker.
        goal: the end offsets of the run that the batch was planned in, None if that run does not stop by itself.
        session: the start of the query in which the batch was planned, by Spark's id.
        skipped: the messages that the stream has skipped up to this batch, by queue.
    """

    ranges: Mapping[MessageQueue, tuple[int, int]]
    origins: Mapping[BrokerTopic, TopicEpoch] = field(default_factory=dict)
    goal: RunEnd | None = None
    session: str = ""
    skipped: Mapping[MessageQueue, SkippedCount] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """Return the topics that the stream reads."""
        return {topic for topic, _ in self.origins}

    def is_last_of(self, run: str) -> bool:
        """Return True if no messages of the named run are left after this batch."""
        if self.goal is None or self.goal.run != run:
            return False
        return all(self.ranges[queue][1] >= end for queue, end in self.goal.ends.items() if queue in self.ranges)

    def pack(self) -> bytes:
        """Encode the plan as bytes for `unpack`."""
        goal = None if self.goal is None else [self.goal.run, _nested((q, [end]) for q, end in self.goal.ends.items())]
        origins = [[*origin, *identity] for origin, identity in self.origins.items()]
        values = [_nested(self.ranges.items()), origins, goal, self.session]
        if self.skipped:
            packed: bytes = msgpack.packb([_FORM_WITH_SKIPPED, *values, _nested(self.skipped.items())])
        else:
            packed = msgpack.packb([_FORM, *values])
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> BatchPlan:
        """Decode the bytes that `pack` returned.

        Raise ProtocolError if they are not a plan, or were written by an incompatible version of this program.
        """
        try:
            form, ranges, origins, goal, session, *more = msgpack.unpackb(packed)
            if (form, len(more)) not in ((_FORM, 0), (_FORM_WITH_SKIPPED, 1)):
                raise ValueError(f"its form is {form!r:.40}")
            return cls(
                {queue: (_offset(start), _offset(end)) for queue, (start, end) in _flat(ranges)},
                {(topic, broker): (str(topic_id), _offset(epoch)) for topic, broker, topic_id, epoch in origins},
                None
                if goal is None
                else RunEnd(str(goal[0]), {queue: _offset(end) for queue, (end,) in _flat(goal[1])}),
                str(session),
                {queue: SkippedCount(_offset(count), str(reason)) for queue, (count, reason) in _flat(*more or [{}])},
            )
        except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
            raise ProtocolError(f"the stored plan is not valid: {error}") from None


class StreamBroken(RayMQError):
    """A stream cannot continue at its offsets, because messages there are missing or were replaced."""

    remedy = 'on_data_loss="skip" goes on with the remaining messages; a new checkpointLocation begins again at start='


def next_plan(
    batch: int,
    previous: BatchPlan | None,
    found: Mapping[BrokerTopic, TopicBounds],
    start_offsets: Mapping[MessageQueue, int] | None,
    max_messages: int | None = None,
    run: str | None = None,
    start_epochs: Mapping[BrokerTopic, TopicEpoch] | None = None,
    *,
    skip_losses: bool = False,
    skip_topics: Collection[str] = (),
) -> BatchPlan:
    """Return the plan of a batch.

    A queue continues where the previous batch ended. A new queue of a topic that was read before begins with its first
    message. A topic that was not read before begins at `start_offsets`.

    Args:
        batch: its number in the query.
        previous: the plan of the previous batch, None for the first batch.
        found: the current offset bounds of the topics' queues; entries of `previous` for other topics are dropped.
        start_offsets: the offsets at which a new topic begins. Queues that are not in it begin with their first
            message, as new queues do. None: with the first message that still exists.
        max_messages: the largest number of messages of the batch, None for all available messages.
        run: the name of the run if it stops by itself: at the queues' ends at the time when its first batch is planned.
        start_epochs: the topic ids and recovery epochs that `start_offsets` belong to; they are unknown for topics that
            are not in it.
        skip_losses: continue after missing messages, and count them in `BatchPlan.skipped`.
        skip_topics: topics of the stream that do not exist now; the stream continues without them until they exist
            again.

    Raises:
        StreamBroken: unread messages are missing, and `skip_losses` is False.
    """
    known = known_topic_epochs(previous, start_epochs)
    missing = {origin: epoch for origin, epoch in known.items() if origin[0] in skip_topics}
    places, losses = _places_of(previous or BatchPlan({}), found, start_offsets, known, missing.keys())
    if losses and not skip_losses:
        raise StreamBroken(losses[0][1].reason)
    skipped = {} if previous is None else dict(previous.skipped)
    for queue, loss in losses:
        if queue is not None:
            earlier = skipped.get(queue, SkippedCount(0, ""))
            skipped[queue] = SkippedCount(earlier.messages + loss.messages, loss.reason)
    goal = _goal(run, None if previous is None else previous.goal, places)
    backlogs = {
        queue: max(0, (high if goal is None else min(high, goal.ends.get(queue, 0))) - position)
        for queue, (position, high) in places.items()
    }
    taken = backlogs if max_messages is None else allocate_messages(backlogs, max_messages, batch)
    ranges = {queue: (position, position + taken[queue]) for queue, (position, _) in places.items()}
    origins = missing | {origin: (each.topic_id, each.epoch) for origin, each in found.items()}
    return BatchPlan(ranges, dict(sorted(origins.items())), goal, skipped=skipped)


def _places_of(
    previous: BatchPlan,
    found: Mapping[BrokerTopic, TopicBounds],
    start_offsets: Mapping[MessageQueue, int] | None,
    known: Mapping[BrokerTopic, TopicEpoch],
    missing: Collection[BrokerTopic],
) -> tuple[dict[MessageQueue, tuple[int, int]], list[tuple[MessageQueue | None, DataLoss]]]:
    """Return where each queue continues and ends now, and the losses in their order.

    Args:
        missing: origins of topics that do not exist now.
    """
    places: dict[MessageQueue, tuple[int, int]] = {}
    losses: list[tuple[MessageQueue | None, DataLoss]] = []
    for origin, bounds in sorted(found.items()):
        recreated = _is_recreated(origin, bounds, known)
        if recreated is not None:  # also if no queue of it was read
            losses.append((None, DataLoss(recreated, 0, 0)))
        for queue_id, each in sorted(bounds.queues.items()):
            queue = MessageQueue(*origin, queue_id)
            position = _position(queue, each, previous, start_offsets)
            if position is None:
                continue
            loss = _loss(queue, position, each) if recreated is None else DataLoss(recreated, each.low, 0)
            if loss is not None:
                losses.append((queue, loss))
                position = loss.position
            places[queue] = position, each.high if each.readable else position
    topics = {topic for topic, _ in found}
    for queue, (_, end) in previous.ranges.items():
        if queue.topic in topics and queue not in places:
            losses.append((queue, DataLoss(f"{queue} does not exist any more; it was read up to offset {end}", 0, 0)))
        elif (queue.topic, queue.broker) in missing:
            losses.append((queue, DataLoss(f"topic {queue.topic} does not exist any more", 0, 0)))
    return places, losses


def _position(
    queue: MessageQueue, bounds: QueueBounds, previous: BatchPlan, start_offsets: Mapping[MessageQueue, int] | None
) -> int | None:
    """Return the offset at which a queue continues or begins.

    None for one that is not to be read.
    """
    if queue in previous.ranges:
        return previous.ranges[queue][1]
    if not bounds.readable:
        return None
    if queue.topic in previous.topics:
        return 0
    return bounds.low if start_offsets is None else start_offsets.get(queue, 0)


def known_topic_epochs(
    previous: BatchPlan | None, start_epochs: Mapping[BrokerTopic, TopicEpoch] | None
) -> dict[BrokerTopic, TopicEpoch]:
    """Return the topic ids and epochs of the offsets at which a batch continues.

    They come from the previous plan, and from `start_epochs` for topics that were not read before.
    """
    read = set() if previous is None else previous.topics
    known = {origin: lineage for origin, lineage in (start_epochs or {}).items() if origin[0] not in read}
    return known if previous is None else {**known, **previous.origins}


def recovery_epochs(origins: Mapping[BrokerTopic, TopicEpoch]) -> dict[BrokerTopic, int]:
    """Return the recovery epochs by topic and broker."""
    return {origin: epoch for origin, (_, epoch) in origins.items()}


def verify_plan(plan: BatchPlan, found: Mapping[BrokerTopic, TopicBounds]) -> None:
    """Verify that the messages of an earlier plan still exist and are the same.

    Raises:
        StreamBroken: messages are missing or were replaced.
    """
    for origin, bounds in found.items():
        if (recreated := _is_recreated(origin, bounds, plan.origins)) is not None:
            raise StreamBroken(recreated)
    for queue, (start, end) in plan.ranges.items():
        if start == end:
            continue
        topic_bounds = found.get((queue.topic, queue.broker))
        each = None if topic_bounds is None else topic_bounds.queues.get(queue.queue_id)
        if each is None:
            raise StreamBroken(f"{queue} does not exist any more, and {end - start} messages of it were not read")
        for position in (start, end):
            if (loss := _moved(queue, position, each)) is not None:
                raise StreamBroken(loss.reason)


def allocate_messages(backlogs: Mapping[MessageQueue, int], max_messages: int, turn: int) -> dict[MessageQueue, int]:
    """Return how many messages of each queue to read, at most `max_messages` in total.

    The total is `max_messages`, or all messages if there are fewer. Each queue contributes in proportion to its
    backlog, so that all queues are read to their ends at the same time. The messages of a batch are then of about the
    same age, and few of them are behind the watermark. The remainder of the rounding goes to queues that would
    contribute nothing. `turn` rotates the queue that comes first, so that each queue gets its turn.
    """
    total = sum(backlogs.values())
    if total <= max_messages:
        return dict(backlogs)
    taken = {queue: max_messages * backlog // total for queue, backlog in backlogs.items()}
    remaining = max_messages - sum(taken.values())
    queues = list(backlogs)
    in_turn = sorted(range(len(queues)), key=lambda at: (taken[queues[at]] > 0, (at - turn) % len(queues)))
    for queue in (queues[at] for at in in_turn):
        if remaining and taken[queue] < backlogs[queue]:
            taken[queue] += 1
            remaining -= 1
    return taken


def rotation_after(previous: BatchPlan, max_messages: int | None) -> int:
    """Return the `turn` of the batch after `previous` where batches have no numbers.

    It is the number of full batches that were read. The number of messages would not work: if the limit is a multiple
    of the number of queues, the same queue would always come first.
    """
    return sum(end for _, end in previous.ranges.values()) // (max_messages or 1)


def _goal(run: str | None, before: RunEnd | None, places: Mapping[MessageQueue, tuple[int, int]]) -> RunEnd | None:
    if run is None:
        return None
    if before is not None and before.run == run:
        return before
    return RunEnd(run, {queue: high for queue, (_, high) in places.items()})


class DataLoss(NamedTuple):
    """Messages that a stream cannot read, the reason, and the offset to continue at."""

    reason: str
    position: int
    messages: int


def _is_recreated(origin: BrokerTopic, bounds: TopicBounds, known: Mapping[BrokerTopic, TopicEpoch]) -> str | None:
    """Return the reason if a topic was deleted and recreated since its offsets were recorded.

    Return None if the offsets still belong to the topic.
    """
    if origin not in known or bounds.topic_id == known[origin][0]:
        return None
    topic, broker = origin
    return f"topic {topic} was deleted and recreated on {broker}: its offsets belong to other messages"


def _loss(queue: MessageQueue, position: int, bounds: QueueBounds) -> DataLoss | None:
    """Return the messages that cannot be read from a position on, else None."""
    loss = _moved(queue, position, bounds)
    if loss is None and not bounds.readable and position < bounds.high:
        remaining = bounds.high - position
        return DataLoss(
            f"{queue} was removed from its topic, and {remaining} messages of it were not read", bounds.high, remaining
        )
    return loss


def _moved(queue: MessageQueue, position: int, bounds: QueueBounds) -> DataLoss | None:
    """Return the loss if an earlier position is between other messages now, else None."""
    if bounds.kept is not None and position > bounds.kept:
        lost = (
            f"a power failure lost the messages behind offset {bounds.kept}, and other messages have these offsets now"
        )
        return DataLoss(f"{queue} was planned up to offset {position}; {lost}", bounds.kept, 0)
    if position > bounds.high:
        reason = f"{queue} ends at {bounds.high}, before offset {position}, which the stream has reached"
        return DataLoss(reason, bounds.high, 0)
    if position < bounds.low:
        cause = "the messages between have expired, or were deleted"
        reason = f"{queue} begins at {bounds.low}, behind offset {position}, which the stream has reached: {cause}"
        return DataLoss(reason, bounds.low, bounds.low - position)
    return None


def _nested(items: Iterable[tuple[MessageQueue, Iterable[Any]]]) -> dict[str, dict[str, list[list[Any]]]]:
    """Group by topic and broker, so that each name is encoded once.

    The leaves are lists of a queue id followed by the item's values.
    """
    found: dict[str, dict[str, list[list[Any]]]] = {}
    for queue, offsets in items:
        found.setdefault(queue.topic, {}).setdefault(queue.broker, []).append([queue.queue_id, *offsets])
    return found


def _flat(nested: Any) -> Iterable[tuple[MessageQueue, list[Any]]]:
    for topic, brokers in nested.items():
        for broker, queues in brokers.items():
            for queue_id, *offsets in queues:
                yield MessageQueue(str(topic), str(broker), int(queue_id)), offsets


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"no offset: {value!r:.40}")
    return value
