"""Which messages a read covers: fixed, queue by queue, when it is planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from raymq.actors.errors import OffsetReset
from raymq.actors.naming import check_group
from raymq.client import MessageQueue, arguments
from raymq.client.admin.admin import Admin
from raymq.client.bulk.range_reader import ANYTHING, lost, made_anew
from raymq.client.bulk.streams import Origin, bounds
from raymq.client.bulk.wish import Lived
from raymq.client.connection import Connection
from raymq.client.errors import BrokerUnavailable, InvalidInput, OffsetOutOfRange, QueueNotFound
from raymq.client.requests.asking import PATIENCE_SECONDS, patiently
from raymq.client.requests.offsets import ConsumeFrom, OffsetRequests
from raymq.spark_bridge.plan import Lineage

#: A place in a topic: "earliest", "latest", a time, {queue: offset} or "group:NAME".
Position = str | float | datetime | Mapping[MessageQueue, int]
#: The same as `check_position` returns it: times are seconds since 1970.
CheckedPosition = str | float | Mapping[MessageQueue, int]

_T = TypeVar("_T")

_GROUP = "group:"
#: Offsets by time are asked for on nobody's behalf.
_NO_GROUP = ""
#: Ranges shorter than this are not cut for the sake of more tasks: a task costs more than their messages.
_LEAST_MESSAGES = 10_000
_MOST_MESSAGES = 250_000


@dataclass(frozen=True, slots=True)
class Range:
    """The messages of one queue from `start` to `end` (not included)."""

    queue: MessageQueue
    start: int
    end: int


def check_on_data_loss(value: Any) -> bool:
    """Return whether `on_data_loss` says to skip what is gone; InvalidInput."""
    if value not in ("error", "skip"):
        raise InvalidInput("on_data_loss", '"error" or "skip"', value)
    return bool(value == "skip")


def plan(
    mq: Connection, topics: Sequence[str], start: Position, end: Position, *, skip_losses: bool = False
) -> list[Range]:
    """One range for every queue of the topics that is read, empty ones included.

    A mapping names the queues that are read: those it leaves out are not. Any other position is one of every queue.
    With `skip_losses` an offset that is not there (any more) stands for the next one that is, and a queue that is not
    there is left out.

    Raises:
        TopicNotFound, GroupNotFound, BrokerUnavailable: a topic, the group or a queue's broker is not there.
        QueueNotFound, OffsetOutOfRange: a mapping names a queue or an offset that is not.
        InvalidInput: no position, or a start behind the end where both are mappings.
    """
    first, last = check_position("start", start), check_position("end", end)
    there = mq.run(bounds(mq, topics, {}, PATIENCE_SECONDS))  # a broker that is away is waited for
    with Admin(mq) as admin:
        stats = [each for topic in topics for each in admin.topic_stats(topic).items()]
    limits = {queue: (each.min_offset, each.max_offset) for queue, each in stats}
    told = {(queue.topic, queue.broker) for queue in limits}
    for topic, broker in sorted(origin for origin, each in there.items() if each.queues and origin not in told):
        raise BrokerUnavailable(broker, f"it has queues of {topic}, and is not there any more")
    starts = offsets_at(mq, limits, first, skip_losses=skip_losses)
    ends = offsets_at(mq, limits, last, skip_losses=skip_losses)
    ranges = [Range(queue, starts[queue], ends[queue]) for queue in sorted(starts.keys() & ends.keys())]
    for each in ranges:
        if each.start > each.end and isinstance(first, Mapping) and isinstance(last, Mapping) and not skip_losses:
            raise InvalidInput("start", f"at most the end, {each.end}, of {each.queue}", each.start)
    return [Range(each.queue, each.start, max(each.start, each.end)) for each in ranges]


def check_position(field: str, position: Any) -> CheckedPosition:
    """What the argument `field` says, as `plan` uses it.

    Raises:
        InvalidInput: it is no position. Whether there is such a queue, offset or group is the brokers' to say.
    """
    if isinstance(position, Mapping):
        return {
            arguments.queue(field, queue): arguments.offset(f"{field}.offset", offset)
            for queue, offset in position.items()
        }
    if isinstance(position, str):
        if position.startswith(_GROUP) and position != _GROUP:
            check_group(position.removeprefix(_GROUP))
        elif position not in ("earliest", "latest"):
            raise InvalidInput(field, 'one of "earliest", "latest", "group:NAME"', position)
        return position
    if isinstance(position, bool) or not (isinstance(position, datetime) or hasattr(position, "__float__")):
        raise InvalidInput(field, "text, a time or {MessageQueue: offset}", position)
    return arguments.timestamp(field, position)


def cut(ranges: list[Range], tasks: int) -> list[Range]:
    """Cut ranges so that about `tasks` of them can run at a time; empty ones fall away."""
    total = sum(each.end - each.start for each in ranges)
    step = max(_LEAST_MESSAGES, min(_MOST_MESSAGES, -(-total // max(1, tasks))))
    return [
        Range(each.queue, begin, min(begin + step, each.end))
        for each in ranges
        for begin in range(each.start, each.end, step)
    ]


def lineages_of(mq: Connection, topics: Sequence[str]) -> dict[Origin, Lineage]:
    """Of which messages the topics' offsets are now. Raises as `bounds`."""
    found = mq.run(bounds(mq, topics, {}, PATIENCE_SECONDS))
    return {origin: (each.topic_id, each.epoch) for origin, each in found.items()}


def check_still_there(
    mq: Connection, ranges: Iterable[Range], planned: Mapping[Origin, Lineage]
) -> dict[Origin, Lived]:
    """See that ranges are of the messages of which they were when they were planned, perhaps long ago.

    Returns:
        what requests have to name that are meant for these messages.

    Raises:
        RayMQError: a topic is another one of the same name, or a loss of power took messages whose offsets others have.
        As `bounds` besides.
    """
    left = list(ranges)
    origins = {(each.queue.topic, each.queue.broker) for each in left} & planned.keys()
    epochs = {origin: planned[origin][1] for origin in origins}
    found = mq.run(bounds(mq, {topic for topic, _ in origins}, epochs, PATIENCE_SECONDS))
    for each in left:
        origin = each.queue.topic, each.queue.broker
        told = found.get(origin)
        if told is None or origin not in planned:
            continue
        if told.topic_id != planned[origin][0]:
            raise made_anew(*origin)
        kept = told.queues[each.queue.queue_id].kept if each.queue.queue_id in told.queues else None
        if kept is not None and each.end > kept:
            raise lost(each.queue, kept)
    return {origin: Lived(found[origin].incarnation, found[origin].epoch) for origin in origins & found.keys()}


def what_is_left(
    mq: Connection, ranges: Sequence[Range], planned: Mapping[Origin, Lineage]
) -> tuple[list[Range], dict[Origin, Lived]]:
    """Return each range up to where it still has the messages that were planned, and what `check_still_there` does.

    A range of a topic that is gone, or is another one of the same name, is empty.
    """
    origins = {(each.queue.topic, each.queue.broker) for each in ranges} & planned.keys()
    epochs = {origin: planned[origin][1] for origin in origins}
    found = mq.run(bounds(mq, {topic for topic, _ in origins}, epochs, PATIENCE_SECONDS, skip_missing=True))

    def end_of(each: Range) -> int:
        origin = each.queue.topic, each.queue.broker
        if origin not in planned:
            return each.end
        if origin not in found or found[origin].topic_id != planned[origin][0]:
            return each.start
        queue = found[origin].queues.get(each.queue.queue_id)
        if queue is None:
            return each.start
        return min(each.end, max(each.start, queue.high if queue.kept is None else min(queue.kept, queue.high)))

    left = [Range(each.queue, each.start, end_of(each)) for each in ranges]
    return left, {origin: Lived(found[origin].incarnation, found[origin].epoch) for origin in origins & found.keys()}


def commit(mq: Connection, ranges: Sequence[Range], planned: Mapping[Origin, Lineage], group: str) -> None:
    """Let `group` go on behind each of the ranges.

    Raises:
        BrokerUnavailable: a queue's broker, and it may be called again. As `check_still_there` besides: what was read
            is not there any more.
    """
    requests = OffsetRequests(mq, check_group(group))
    ends = {each.queue: each.end for each in ranges}
    lived = check_still_there(mq, ranges, planned)

    async def one(queue: MessageQueue) -> None:
        incarnation, epoch = lived.get((queue.topic, queue.broker), ANYTHING)
        try:
            await patiently(lambda: requests.commit(queue, ends[queue], incarnation=incarnation, epoch=epoch))
        except OffsetReset as reset:
            raise (
                lost(queue, reset.offset) if reset.incarnation is None else made_anew(queue.topic, queue.broker)
            ) from None

    _ask(mq, ends, one)


def offsets_at(
    mq: Connection,
    limits: Mapping[MessageQueue, tuple[int, int]],
    position: CheckedPosition,
    *,
    skip_losses: bool = False,
) -> dict[MessageQueue, int]:
    """Which offset a checked position is in each of these queues, given with their minimum and maximum offsets.

    A mapping has those that it names only. Raises as `plan`.
    """
    if isinstance(position, Mapping):
        return _nearest(limits, position) if skip_losses else _given(limits, position)
    if position == "earliest":
        return {queue: low for queue, (low, _) in limits.items()}
    if position == "latest":
        return {queue: high for queue, (_, high) in limits.items()}
    if isinstance(position, str):
        return _committed(mq, position.removeprefix(_GROUP), limits)
    at_time = OffsetRequests(mq, _NO_GROUP)
    found = _ask(mq, limits, lambda queue: at_time.first(queue, ConsumeFrom.TIMESTAMP, position))
    return {queue: min(max(found[queue][0], low), high) for queue, (low, high) in limits.items()}


def _given(
    limits: Mapping[MessageQueue, tuple[int, int]], position: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    for queue, offset in position.items():
        if queue not in limits:
            raise QueueNotFound(f"{queue} is not a queue of what is read")
        low, high = limits[queue]
        if not low <= offset <= high:
            raise OffsetOutOfRange(offset, low, high)
    return dict(position)


def _nearest(
    limits: Mapping[MessageQueue, tuple[int, int]], position: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Return the offsets that are given, or the nearest that there are; queues that are gone are left out."""
    there = {queue: (offset, *limits[queue]) for queue, offset in position.items() if queue in limits}
    return {queue: min(max(offset, low), high) for queue, (offset, low, high) in there.items()}


def _committed(mq: Connection, group: str, limits: Mapping[MessageQueue, tuple[int, int]]) -> dict[MessageQueue, int]:
    """Where `group` goes on: its committed offset, else the queue's first message."""
    with Admin(mq) as admin:
        admin.group_progress(group)  # GroupNotFound: a name that nobody knows is no group without offsets
    found = _ask(mq, limits, OffsetRequests(mq, group).committed)
    offsets = {}
    for queue, (low, high) in limits.items():
        place = found[queue]
        offsets[queue] = low if place is None else min(max(place[0], low), high)
    return offsets


def _ask(
    mq: Connection, queues: Iterable[MessageQueue], question: Callable[[MessageQueue], Coroutine[None, None, _T]]
) -> dict[MessageQueue, _T]:
    """Ask all queues' brokers at the same time."""
    asked = list(queues)

    async def all_of_them() -> list[_T]:
        return list(await asyncio.gather(*(question(queue) for queue in asked)))

    return dict(zip(asked, mq.run(all_of_them()), strict=True))
