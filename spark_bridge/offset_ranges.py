"""Plan the messages of a read: fixed offset ranges, one for each queue."""

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
from raymq.client.bulk.range_reader import NO_FENCE, BrokerTopic, ReadFence, bounds, range_lost, topic_recreated
from raymq.client.connection import Connection
from raymq.client.errors import BrokerUnavailable, InvalidInput, OffsetOutOfRange, QueueNotFound
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS, retry_while_unavailable
from raymq.client.requests.offset_requests import ConsumeFrom, OffsetRequests
from raymq.spark_bridge.batch_plan import TopicEpoch

#: A position in a topic: "earliest", "latest", a time, {queue: offset} or "group:NAME".
Position = str | float | datetime | Mapping[MessageQueue, int]
#: A position as `check_position` returns it: times are seconds since 1970.
CheckedPosition = str | float | Mapping[MessageQueue, int]

_T = TypeVar("_T")

_GROUP = "group:"
#: Offset lookups by time do not belong to a consumer group.
_NO_GROUP = ""
#: Shorter ranges are not divided into more tasks: a task costs more than their messages.
_MIN_MESSAGES = 10_000
_MAX_MESSAGES = 250_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one queue from `start` to `end` (not included)."""

    queue: MessageQueue
    start: int
    end: int


def check_on_data_loss(value: Any) -> bool:
    """Return True if `on_data_loss` is "skip"; raise InvalidInput for an unknown value."""
    if value not in ("error", "skip"):
        raise InvalidInput("on_data_loss", '"error" or "skip"', value)
    return bool(value == "skip")


def plan(
    mq: Connection, topics: Sequence[str], start: Position, end: Position, *, skip_losses: bool = False
) -> list[OffsetRange]:
    """Return one range for every queue that is read, including empty ranges.

    A mapping names the queues that are read; other queues are not read. Any other position applies to every queue. With
    `skip_losses` an offset that does not exist (any more) is replaced with the nearest one that does, and a missing
    queue is left out.

    Raises:
        TopicNotFound, GroupNotFound, BrokerUnavailable: a topic, the group or a queue's broker is missing.
        QueueNotFound, OffsetOutOfRange: a mapping names a queue or an offset that does not exist.
        InvalidInput: not a position, or a start after the end where both are mappings.
    """
    first, last = check_position("start", start), check_position("end", end)
    there = mq.run(bounds(mq, topics, {}, RETRY_TIMEOUT_SECONDS))  # This waits for a broker that is unavailable.
    with Admin(mq) as admin:
        stats = [each for topic in topics for each in admin.topic_stats(topic).items()]
    limits = {queue: (each.min_offset, each.max_offset) for queue, each in stats}
    listed = {(queue.topic, queue.broker) for queue in limits}
    for topic, broker in sorted(origin for origin, each in there.items() if each.queues and origin not in listed):
        raise BrokerUnavailable(broker, f"it has queues of {topic}, but is not reachable any more")
    starts = resolve_offsets(mq, limits, first, skip_losses=skip_losses)
    ends = resolve_offsets(mq, limits, last, skip_losses=skip_losses)
    ranges = [OffsetRange(queue, starts[queue], ends[queue]) for queue in sorted(starts.keys() & ends.keys())]
    for each in ranges:
        if each.start > each.end and isinstance(first, Mapping) and isinstance(last, Mapping) and not skip_losses:
            raise InvalidInput("start", f"at most the end, {each.end}, of {each.queue}", each.start)
    return [OffsetRange(each.queue, each.start, max(each.start, each.end)) for each in ranges]


def check_position(field: str, position: Any) -> CheckedPosition:
    """Return the position in the argument `field` in the form that `plan` uses.

    Raises:
        InvalidInput: it is not a position. Whether the queue, offset or group exists is checked by the brokers later.
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


def split_ranges(ranges: list[OffsetRange], tasks: int) -> list[OffsetRange]:
    """Cut ranges so that about `tasks` of them run at once; omit empty ranges."""
    total = sum(each.end - each.start for each in ranges)
    step = max(_MIN_MESSAGES, min(_MAX_MESSAGES, -(-total // max(1, tasks))))
    return [
        OffsetRange(each.queue, begin, min(begin + step, each.end))
        for each in ranges
        for begin in range(each.start, each.end, step)
    ]


def fetch_topic_epochs(mq: Connection, topics: Sequence[str]) -> dict[BrokerTopic, TopicEpoch]:
    """Return the current topic ids and recovery epochs of the topics. Raise as `bounds`."""
    found = mq.run(bounds(mq, topics, {}, RETRY_TIMEOUT_SECONDS))
    return {origin: (each.topic_id, each.epoch) for origin, each in found.items()}


def check_not_lost(
    mq: Connection, ranges: Iterable[OffsetRange], planned: Mapping[BrokerTopic, TopicEpoch]
) -> dict[BrokerTopic, ReadFence]:
    """Verify that ranges still have the messages that they had when they were planned.

    Returns:
        the fences that requests for these messages must contain.

    Raises:
        RayMQError: a topic was deleted and recreated, or a power loss destroyed messages and their offsets were reused.
            As `bounds` besides.
    """
    checked = list(ranges)
    origins = {(each.queue.topic, each.queue.broker) for each in checked} & planned.keys()
    epochs = {origin: planned[origin][1] for origin in origins}
    found = mq.run(bounds(mq, {topic for topic, _ in origins}, epochs, RETRY_TIMEOUT_SECONDS))
    for each in checked:
        origin = each.queue.topic, each.queue.broker
        topic_bounds = found.get(origin)
        if topic_bounds is None or origin not in planned:
            continue
        if topic_bounds.topic_id != planned[origin][0]:
            raise topic_recreated(*origin)
        retained = topic_bounds.queues[each.queue.queue_id].kept if each.queue.queue_id in topic_bounds.queues else None
        if retained is not None and each.end > retained:
            raise range_lost(each.queue, retained)
    return {origin: ReadFence(found[origin].incarnation, found[origin].epoch) for origin in origins & found.keys()}


def remaining_ranges(
    mq: Connection, ranges: Sequence[OffsetRange], planned: Mapping[BrokerTopic, TopicEpoch]
) -> tuple[list[OffsetRange], dict[BrokerTopic, ReadFence]]:
    """Return each range up to its last planned message that still exists.

    Also return the read fences, which are those of `check_not_lost`. The range of a topic that was deleted, even if
    recreated, is empty.
    """
    origins = {(each.queue.topic, each.queue.broker) for each in ranges} & planned.keys()
    epochs = {origin: planned[origin][1] for origin in origins}
    found = mq.run(bounds(mq, {topic for topic, _ in origins}, epochs, RETRY_TIMEOUT_SECONDS, skip_missing=True))

    def end_of(each: OffsetRange) -> int:
        origin = each.queue.topic, each.queue.broker
        if origin not in planned:
            return each.end
        if origin not in found or found[origin].topic_id != planned[origin][0]:
            return each.start
        queue = found[origin].queues.get(each.queue.queue_id)
        if queue is None:
            return each.start
        return min(each.end, max(each.start, queue.high if queue.kept is None else min(queue.kept, queue.high)))

    remaining = [OffsetRange(each.queue, each.start, end_of(each)) for each in ranges]
    return remaining, {
        origin: ReadFence(found[origin].incarnation, found[origin].epoch) for origin in origins & found.keys()
    }


def commit(
    mq: Connection, ranges: Sequence[OffsetRange], planned: Mapping[BrokerTopic, TopicEpoch], group: str
) -> None:
    """Commit the end of each range as the offset of `group`.

    Raises:
        BrokerUnavailable: a queue's broker is unavailable; the call may be repeated. As `check_not_lost` besides:
            messages that were read are missing.
    """
    requests = OffsetRequests(mq, check_group(group))
    ends = {each.queue: each.end for each in ranges}
    fence = check_not_lost(mq, ranges, planned)

    async def one(queue: MessageQueue) -> None:
        incarnation, epoch = fence.get((queue.topic, queue.broker), NO_FENCE)
        try:
            await retry_while_unavailable(
                lambda: requests.commit(queue, ends[queue], incarnation=incarnation, epoch=epoch)
            )
        except OffsetReset as reset:
            raise (
                range_lost(queue, reset.offset)
                if reset.incarnation is None
                else topic_recreated(queue.topic, queue.broker)
            ) from None

    _request(mq, ends, one)


def resolve_offsets(
    mq: Connection,
    limits: Mapping[MessageQueue, tuple[int, int]],
    position: CheckedPosition,
    *,
    skip_losses: bool = False,
) -> dict[MessageQueue, int]:
    """Return the offset of a checked position in each queue.

    `limits` has the minimum and maximum offset of each queue. A mapping gives only the queues that it names. Raises as
    `plan`.
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
    found = _request(mq, limits, lambda queue: at_time.first(queue, ConsumeFrom.TIMESTAMP, position))
    return {queue: min(max(found[queue][0], low), high) for queue, (low, high) in limits.items()}


def _given(
    limits: Mapping[MessageQueue, tuple[int, int]], position: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    for queue, offset in position.items():
        if queue not in limits:
            raise QueueNotFound(f"{queue} is not a queue of the topics that are read")
        low, high = limits[queue]
        if not low <= offset <= high:
            raise OffsetOutOfRange(offset, low, high)
    return dict(position)


def _nearest(
    limits: Mapping[MessageQueue, tuple[int, int]], position: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Return the given offsets, each replaced with the nearest existing one; omit missing queues."""
    there = {queue: (offset, *limits[queue]) for queue, offset in position.items() if queue in limits}
    return {queue: min(max(offset, low), high) for queue, (offset, low, high) in there.items()}


def _committed(mq: Connection, group: str, limits: Mapping[MessageQueue, tuple[int, int]]) -> dict[MessageQueue, int]:
    """Return the committed offsets of `group`, or the queue's first offset without a commit."""
    with Admin(mq) as admin:
        admin.group_progress(group)  # Raises GroupNotFound: an unknown name is not a group without offsets.
    found = _request(mq, limits, OffsetRequests(mq, group).committed)
    offsets = {}
    for queue, (low, high) in limits.items():
        place = found[queue]
        offsets[queue] = low if place is None else min(max(place[0], low), high)
    return offsets


def _request(
    mq: Connection, queues: Iterable[MessageQueue], question: Callable[[MessageQueue], Coroutine[None, None, _T]]
) -> dict[MessageQueue, _T]:
    """Call all queues' brokers at the same time."""
    requested = list(queues)

    async def all_of_them() -> list[_T]:
        return list(await asyncio.gather(*(question(queue) for queue in requested)))

    return dict(zip(requested, mq.run(all_of_them()), strict=True))
