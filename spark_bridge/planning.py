"""What the next batch of a stream reads, decided from what was read and what is there. No I/O and no clock.

Nothing is left out silently: where what follows the last batch is not there any more, or is something else now, there
is no plan but an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.stream_plans import QueueBounds, TopicBounds
from raymq.client.bulk.streams import Origin
from raymq.spark_bridge.plan import Goal, Lineage, Plan


class StreamBroken(RayMQError):
    """A stream cannot go on where it stood: what follows there is gone, or is not what it was."""

    remedy = "start the query with a new checkpointLocation, and begin where start= says"


def next_plan(
    batch: int,
    previous: Plan | None,
    found: Mapping[Origin, TopicBounds],
    starts: Mapping[MessageQueue, int] | None,
    most: int | None = None,
    run: str | None = None,
    started: Mapping[Origin, Lineage] | None = None,
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

    Raises:
        StreamBroken: messages that were not read are not there any more.
    """
    known = lineages(previous, started)
    seen_topics = set() if previous is None else previous.topics
    before = {} if previous is None else previous.ranges
    places: dict[MessageQueue, tuple[int, int]] = {}
    for origin, bounds in sorted(found.items()):
        topic, broker = origin
        _check_same_topic(origin, bounds, known)
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
            _check_place(queue, position, each)
            places[queue] = position, each.high if each.readable else position
    topics = {topic for topic, _ in found}
    for queue in before:
        if queue.topic in topics and queue not in places:
            raise StreamBroken(f"{queue} is not there any more; it was read up to offset {before[queue][1]}")
    goal = _goal(run, None if previous is None else previous.goal, places)
    backlogs = {
        queue: max(0, (high if goal is None else min(high, goal.ends.get(queue, 0))) - position)
        for queue, (position, high) in places.items()
    }
    taken = backlogs if most is None else share(backlogs, most, batch)
    ranges = {queue: (position, position + taken[queue]) for queue, (position, _) in places.items()}
    return Plan(ranges, {origin: (each.topic_id, each.epoch) for origin, each in sorted(found.items())}, goal)


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
        _check_same_topic(origin, bounds, plan.origins)
    for queue, (start, end) in plan.ranges.items():
        if start == end:
            continue
        told = found.get((queue.topic, queue.broker))
        each = None if told is None else told.queues.get(queue.queue_id)
        if each is None:
            raise StreamBroken(f"{queue} is not there any more, and {end - start} messages of it are not read")
        for position in (start, end):
            _check_kept(queue, position, each)


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


def _check_same_topic(origin: Origin, bounds: TopicBounds, known: Mapping[Origin, Lineage]) -> None:
    if origin in known and bounds.topic_id != known[origin][0]:
        topic, broker = origin
        raise StreamBroken(f"topic {topic} was deleted and made anew on {broker}: its offsets are of other messages")


def _check_place(queue: MessageQueue, position: int, bounds: QueueBounds) -> None:
    """See that a queue can be read on from a position."""
    _check_kept(queue, position, bounds)
    if not bounds.readable and position < bounds.high:
        left = bounds.high - position
        raise StreamBroken(f"{queue} was taken from its topic, and {left} messages of it are not read")


def _check_kept(queue: MessageQueue, position: int, bounds: QueueBounds) -> None:
    """See that a position of earlier is one between the same messages now."""
    if bounds.kept is not None and position > bounds.kept:
        lost = f"a loss of power took what was stored behind {bounds.kept}, and other messages have these offsets now"
        raise StreamBroken(f"{queue} was planned up to offset {position}; {lost}")
    if position > bounds.high:
        raise StreamBroken(f"{queue} ends at {bounds.high}, before offset {position}, which the stream has come to")
    if position < bounds.low:
        gone = "what was there has expired, or was deleted"
        raise StreamBroken(
            f"{queue} begins at {bounds.low}, behind offset {position}, which the stream has come to: {gone}"
        )
