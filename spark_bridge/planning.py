"""What the next batch of a stream reads, decided from what was read and what is there. No I/O and no clock.

Nothing is skipped silently. Where what follows the last batch is gone there is no plan but an error, or, for a stream
with `on_data_loss="skip"`, a plan that goes on behind it and says what it skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.stream_plans import QueueBounds, TopicBounds
from raymq.client.bulk.streams import Origin
from raymq.spark_bridge.plan import Goal, Lineage, Plan, Skipped


class StreamBroken(RayMQError):
    """A stream cannot go on where it stood: what follows there is gone, or is not what it was."""

    remedy = 'on_data_loss="skip" goes on with what is left; a new checkpointLocation begins anew, where start= says'


def next_plan(
    batch: int,
    previous: Plan | None,
    found: Mapping[Origin, TopicBounds],
    starts: Mapping[MessageQueue, int] | None,
    most: int | None = None,
    run: str | None = None,
    started: Mapping[Origin, Lineage] | None = None,
    *,
    skip_losses: bool = False,
    skip_topics: Collection[str] = (),
) -> Plan:
    """The plan of a batch.

    A queue goes on where the previous batch ended. One that is new in a topic that was read before begins with its
    first message, and a topic that was not read before begins where `starts` says.

    Args:
        batch: its number in the query.
        previous: the plan of the batch before; None: this is the first.
        found: what the queues of the topics that are read hold now; what `previous` has of other topics is dropped.
        starts: where a topic begins that is new: queues that are not named begin with their first message, as new ones
            do. None: with the first message that is there.
        most: how many messages it reads at most; None: all that are there.
        run: the name of the run, if it ends by itself: where the queues end as its first batch is planned.
        started: of which messages the offsets of `starts` are; what it does not name is not known.
        skip_losses: go on behind messages that are gone, and keep account of them in `Plan.skipped`.
        skip_topics: topics of the stream that do not exist now: it goes on without them until they are there again.

    Raises:
        StreamBroken: messages that were not read are not there any more, and `skip_losses` is False.
    """
    known = lineages(previous, started)
    seen_topics = set() if previous is None else previous.topics
    before = {} if previous is None else previous.ranges
    skipped = {} if previous is None else dict(previous.skipped)
    places: dict[MessageQueue, tuple[int, int]] = {}

    def lose(queue: MessageQueue, loss: Loss) -> None:
        if not skip_losses:
            raise StreamBroken(loss.reason)
        earlier = skipped.get(queue, Skipped(0, ""))
        skipped[queue] = Skipped(earlier.messages + loss.messages, loss.reason)

    for origin, bounds in sorted(found.items()):
        topic, broker = origin
        made_anew = _made_anew(origin, bounds, known)
        if made_anew is not None and not skip_losses:
            raise StreamBroken(made_anew)
        for queue_id, each in sorted(bounds.queues.items()):
            queue = MessageQueue(topic, broker, queue_id)
            if queue in before:
                position = before[queue][1]
            elif not each.readable:
                continue
            elif starts is None and topic not in seen_topics:
                position = each.low
            else:
                position = 0 if topic in seen_topics or starts is None else starts.get(queue, 0)
            loss = _loss(queue, position, each) if made_anew is None else Loss(made_anew, each.low, 0)
            if loss is not None:
                lose(queue, loss)
                position = loss.position
            places[queue] = position, each.high if each.readable else position
    topics = {topic for topic, _ in found}
    missing = {origin: lineage for origin, lineage in known.items() if origin[0] in skip_topics}
    for queue in before:
        if queue.topic in topics and queue not in places:
            lose(queue, Loss(f"{queue} is not there any more; it was read up to offset {before[queue][1]}", 0, 0))
        elif (queue.topic, queue.broker) in missing:
            lose(queue, Loss(f"topic {queue.topic} does not exist any more", 0, 0))
    goal = _goal(run, None if previous is None else previous.goal, places)
    backlogs = {
        queue: max(0, (high if goal is None else min(high, goal.ends.get(queue, 0))) - position)
        for queue, (position, high) in places.items()
    }
    taken = backlogs if most is None else share(backlogs, most, batch)
    ranges = {queue: (position, position + taken[queue]) for queue, (position, _) in places.items()}
    origins = missing | {origin: (each.topic_id, each.epoch) for origin, each in found.items()}
    return Plan(ranges, dict(sorted(origins.items())), goal, skipped=skipped)


def lineages(previous: Plan | None, started: Mapping[Origin, Lineage] | None) -> dict[Origin, Lineage]:
    """Of which messages the offsets are at which a batch goes on: what was read before, else where it was started."""
    read = set() if previous is None else previous.topics
    known = {origin: lineage for origin, lineage in (started or {}).items() if origin[0] not in read}
    return known if previous is None else {**known, **previous.origins}


def epochs_of(origins: Mapping[Origin, Lineage]) -> dict[Origin, int]:
    """The recovery epochs among them."""
    return {origin: epoch for origin, (_, epoch) in origins.items()}


def check_plan(plan: Plan, found: Mapping[Origin, TopicBounds]) -> None:
    """See that what was planned before, perhaps long ago, is still there and the same.

    Raises:
        StreamBroken: it is not.
    """
    for origin, bounds in found.items():
        if (made_anew := _made_anew(origin, bounds, plan.origins)) is not None:
            raise StreamBroken(made_anew)
    for queue, (start, end) in plan.ranges.items():
        if start == end:
            continue
        told = found.get((queue.topic, queue.broker))
        each = None if told is None else told.queues.get(queue.queue_id)
        if each is None:
            raise StreamBroken(f"{queue} is not there any more, and {end - start} messages of it are not read")
        for position in (start, end):
            if (loss := _moved(queue, position, each)) is not None:
                raise StreamBroken(loss.reason)


def share(backlogs: Mapping[MessageQueue, int], most: int, turn: int) -> dict[MessageQueue, int]:
    """How many messages of each queue are read, so that they are `most` together, or all if there are fewer.

    Each queue gives in proportion to what it has, so that all are read through at the same time: their messages are of
    about the same age then, and a watermark leaves little behind. What rounding leaves over goes to queues that would
    give nothing, at another one first with each `turn`, so that none waits for ever.
    """
    total = sum(backlogs.values())
    if total <= most:
        return dict(backlogs)
    taken = {queue: most * backlog // total for queue, backlog in backlogs.items()}
    left = most - sum(taken.values())
    queues = list(backlogs)
    in_turn = sorted(range(len(queues)), key=lambda at: (taken[queues[at]] > 0, (at - turn) % len(queues)))
    for queue in (queues[at] for at in in_turn):
        if left and taken[queue] < backlogs[queue]:
            taken[queue] += 1
            left -= 1
    return taken


def turn_after(previous: Plan, most: int | None) -> int:
    """The `turn` of the batch behind `previous` where batches are not counted: how many full ones were read.

    How many messages they had would not do: where the limit is a multiple of the queues, it is the same queue's turn.
    """
    return sum(end for _, end in previous.ranges.values()) // (most or 1)


def _goal(run: str | None, before: Goal | None, places: Mapping[MessageQueue, tuple[int, int]]) -> Goal | None:
    if run is None:
        return None
    if before is not None and before.run == run:
        return before
    return Goal(run, {queue: high for queue, (_, high) in places.items()})


class Loss(NamedTuple):
    """Messages that a stream can not read, why, and the offset at which it can go on."""

    reason: str
    position: int
    messages: int


def _made_anew(origin: Origin, bounds: TopicBounds, known: Mapping[Origin, Lineage]) -> str | None:
    """Return why the offsets that are known of a topic are of another one, None if they are not."""
    if origin not in known or bounds.topic_id == known[origin][0]:
        return None
    topic, broker = origin
    return f"topic {topic} was deleted and made anew on {broker}: its offsets are of other messages"


def _loss(queue: MessageQueue, position: int, bounds: QueueBounds) -> Loss | None:
    """Return what cannot be read on from a position, None if all can."""
    loss = _moved(queue, position, bounds)
    if loss is None and not bounds.readable and position < bounds.high:
        left = bounds.high - position
        return Loss(f"{queue} was taken from its topic, and {left} messages of it are not read", bounds.high, left)
    return loss


def _moved(queue: MessageQueue, position: int, bounds: QueueBounds) -> Loss | None:
    """Return why a position of earlier is none between the same messages now, None if it is."""
    if bounds.kept is not None and position > bounds.kept:
        lost = f"a loss of power took what was stored behind {bounds.kept}, and other messages have these offsets now"
        return Loss(f"{queue} was planned up to offset {position}; {lost}", bounds.kept, 0)
    if position > bounds.high:
        reason = f"{queue} ends at {bounds.high}, before offset {position}, which the stream has come to"
        return Loss(reason, bounds.high, 0)
    if position < bounds.low:
        gone = "what was there has expired, or was deleted"
        reason = f"{queue} begins at {bounds.low}, behind offset {position}, which the stream has come to: {gone}"
        return Loss(reason, bounds.low, bounds.low - position)
    return None
