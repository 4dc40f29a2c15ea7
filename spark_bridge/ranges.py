"""Which messages a read covers: fixed, queue by queue, when it is planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from raymq.actors.naming import check_group
from raymq.client import MessageQueue, arguments
from raymq.client.admin.admin import Admin
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, OffsetOutOfRange, QueueNotFound
from raymq.client.requests.offsets import ConsumeFrom, OffsetRequests

#: A place in a topic: "earliest", "latest", seconds since the epoch, {queue: offset} or "group:NAME".
Position = str | float | Mapping[MessageQueue, int]

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


def plan(mq: Connection, topic: str, start: Position, end: Position) -> list[Range]:
    """One range for every queue that is read, empty ones included.

    A mapping names the queues that are read: those it leaves out are not. Any other position is one of every queue.

    Raises:
        TopicNotFound, GroupNotFound, BrokerUnavailable: the topic, the group or a queue's broker is not there.
        QueueNotFound, OffsetOutOfRange: a mapping names a queue or an offset that is not.
        InvalidInput: no position, or a start behind the end where both are mappings.
    """
    start, end = check_position("start", start), check_position("end", end)
    with Admin(mq) as admin:
        stats = admin.topic_stats(topic)
    limits = {queue: (each.min_offset, each.max_offset) for queue, each in stats.items()}
    starts = _offsets(mq, limits, start)
    ends = _offsets(mq, limits, end)
    ranges = [Range(queue, starts[queue], ends[queue]) for queue in sorted(starts.keys() & ends.keys())]
    for each in ranges:
        if each.start > each.end and isinstance(start, Mapping) and isinstance(end, Mapping):
            raise InvalidInput("start", f"at most the end, {each.end}, of {each.queue}", each.start)
    return [Range(each.queue, each.start, max(each.start, each.end)) for each in ranges]


def check_position(field: str, position: Any) -> Position:
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
    if isinstance(position, bool) or not hasattr(position, "__float__"):
        raise InvalidInput(field, "text, seconds or {MessageQueue: offset}", position)
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


def _offsets(
    mq: Connection, limits: Mapping[MessageQueue, tuple[int, int]], position: Position
) -> dict[MessageQueue, int]:
    if isinstance(position, Mapping):
        return _given(limits, position)
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
            raise QueueNotFound(f"{queue} is not a queue of the topic")
        low, high = limits[queue]
        if not low <= offset <= high:
            raise OffsetOutOfRange(offset, low, high)
    return dict(position)


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
