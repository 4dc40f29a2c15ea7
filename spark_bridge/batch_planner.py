"""Plan the next batch of a stream from the previous batch and current offsets.

No I/O and no clock. Nothing is skipped silently: if messages after the last batch are missing, planning raises an
error. For a stream with `on_data_loss="skip"` the plan continues after the missing messages and records what it
skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.stream_plan_commands import QueueBounds, TopicBounds
from raymq.client.bulk.batch_plans import BrokerTopic
from raymq.spark_bridge.batch_plan import BatchPlan, RunEnd, SkippedCount, TopicEpoch


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
    seen_topics = set() if previous is None else previous.topics
    before = {} if previous is None else previous.ranges
    skipped = {} if previous is None else dict(previous.skipped)
    places: dict[MessageQueue, tuple[int, int]] = {}

    def lose(queue: MessageQueue, loss: DataLoss) -> None:
        if not skip_losses:
            raise StreamBroken(loss.reason)
        earlier = skipped.get(queue, SkippedCount(0, ""))
        skipped[queue] = SkippedCount(earlier.messages + loss.messages, loss.reason)

    for origin, bounds in sorted(found.items()):
        topic, broker = origin
        made_anew = _is_recreated(origin, bounds, known)
        if made_anew is not None and not skip_losses:
            raise StreamBroken(made_anew)
        for queue_id, each in sorted(bounds.queues.items()):
            queue = MessageQueue(topic, broker, queue_id)
            if queue in before:
                position = before[queue][1]
            elif not each.readable:
                continue
            elif start_offsets is None and topic not in seen_topics:
                position = each.low
            else:
                position = 0 if topic in seen_topics or start_offsets is None else start_offsets.get(queue, 0)
            loss = _loss(queue, position, each) if made_anew is None else DataLoss(made_anew, each.low, 0)
            if loss is not None:
                lose(queue, loss)
                position = loss.position
            places[queue] = position, each.high if each.readable else position
    topics = {topic for topic, _ in found}
    missing = {origin: lineage for origin, lineage in known.items() if origin[0] in skip_topics}
    for queue in before:
        if queue.topic in topics and queue not in places:
            lose(queue, DataLoss(f"{queue} does not exist any more; it was read up to offset {before[queue][1]}", 0, 0))
        elif (queue.topic, queue.broker) in missing:
            lose(queue, DataLoss(f"topic {queue.topic} does not exist any more", 0, 0))
    goal = _goal(run, None if previous is None else previous.goal, places)
    backlogs = {
        queue: max(0, (high if goal is None else min(high, goal.ends.get(queue, 0))) - position)
        for queue, (position, high) in places.items()
    }
    taken = backlogs if max_messages is None else allocate_messages(backlogs, max_messages, batch)
    ranges = {queue: (position, position + taken[queue]) for queue, (position, _) in places.items()}
    origins = missing | {origin: (each.topic_id, each.epoch) for origin, each in found.items()}
    return BatchPlan(ranges, dict(sorted(origins.items())), goal, skipped=skipped)


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
        if (made_anew := _is_recreated(origin, bounds, plan.origins)) is not None:
            raise StreamBroken(made_anew)
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
