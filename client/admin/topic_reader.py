"""Read topics without a group, as an Arrow table or as a stream of messages.

See `Admin.read_table` and `Admin.tail`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from raymq.actors.errors import BrokerUnavailable, InvalidInput, OffsetOutOfRange, QueueNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.naming import DLQ_PREFIX, check_group, check_topic
from raymq.actors.protocol import MessageQueue
from raymq.client import arguments
from raymq.client.admin import dead_letter_requests
from raymq.client.admin.group_requests import check_exists
from raymq.client.bulk.range_reader import RangeReader, ReadFence, ReadSpec, bounds
from raymq.client.connection import Connection
from raymq.client.members.tag_filter import TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.message_decoder import decode_each
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS, retry_while_unavailable
from raymq.client.requests.fan_out import gather
from raymq.client.requests.fetch_request import ANSWER_BYTES, fetch
from raymq.client.requests.offset_requests import ConsumeFrom, OffsetRequests
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record_table import SCHEMA

#: A place in a topic: "earliest", "latest", a time, {queue: offset} or "group:NAME".
ReadPosition = str | float | datetime | Mapping[MessageQueue, int]

_GROUP: Final = "group:"
#: Messages per answer while a topic is followed, and how long a broker parks a fetch that finds nothing.
_AT_ONCE: Final = 256
_WAIT_SECONDS: Final = 2.0
#: The number of attempts to close a reader, which fail while a step of it is being cancelled.
_CLOSING_TRIES: Final = 100
_CLOSING_SECONDS: Final = 0.02


def check_read_position(field: str, place: Any) -> ReadPosition:
    """Return a position, with times as seconds; raise InvalidInput if it is none."""
    if isinstance(place, Mapping):
        return {arguments.queue(field, queue): arguments.offset(f"{field}.offset", at) for queue, at in place.items()}
    if isinstance(place, str):
        if place.startswith(_GROUP) and place != _GROUP:
            check_group(place.removeprefix(_GROUP))
        elif place not in ("earliest", "latest"):
            raise InvalidInput(field, '"earliest", "latest", "group:NAME", a time or {MessageQueue: offset}', place)
        return place
    return arguments.timestamp(field, place)


def checked_columns(columns: Sequence[str] | None) -> list[str]:
    """Return the columns of a table in their order.

    Raise InvalidInput, which names the columns that exist, if an argument is no list of some of them.
    """
    if columns is None:
        return list(SCHEMA.names)
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InvalidInput("columns", f"a list of some of {', '.join(SCHEMA.names)}", columns)
    for name in columns:
        if name not in SCHEMA.names:
            raise InvalidInput("columns", f"some of {', '.join(SCHEMA.names)}", name)
    if len(set(columns)) < len(columns):
        raise InvalidInput("columns", "each column once", list(columns))
    return list(columns)


def table(
    mq: Connection,
    topic: str,
    start: ReadPosition,
    end: ReadPosition,
    tags: str,
    columns: Sequence[str] | None,
    max_rows: int | None,
) -> pa.Table:
    """Return messages as a table; see `Admin.read_table`.

    Blocks: not to be called on the connection's own event loop.
    """
    check_topic(topic)
    first, last = check_read_position("start", start), check_read_position("end", end)
    wanted_tags = TagFilter.parse(arguments.text("tags", tags)).tags
    names = checked_columns(columns)
    remaining = None if max_rows is None else arguments.whole("max_rows", max_rows, 0, arguments.MAX_OFFSET)
    spec = ReadSpec(wanted_tags, None, None if columns is None else frozenset(names))
    named = [{queue.broker for queue in place} for place in (first, last) if isinstance(place, Mapping)]
    brokers = frozenset.intersection(*map(frozenset, named)) if named else None
    found = mq.run(bounds(mq, [topic], {}, RETRY_TIMEOUT_SECONDS, brokers=brokers))
    limits = {
        MessageQueue(topic, broker, queue_id): (each.low, each.high)
        for (_, broker), of_broker in found.items()
        for queue_id, each in of_broker.queues.items()
        if each.readable
    }
    starts, ends = mq.run(_offsets(mq, limits, first)), mq.run(_offsets(mq, limits, last))
    parts: list[pa.Table] = []
    reader = RangeReader(mq.name_servers, mq.tls, connection=mq)
    for queue in sorted(starts.keys() & ends.keys()):
        topic_bounds = found[topic, queue.broker]
        fence = ReadFence(topic_bounds.incarnation, topic_bounds.epoch)
        for begin, behind in mq.run(_ranges(mq, queue, starts[queue], ends[queue])):
            if remaining == 0:
                break
            for part in reader.table(queue, begin, behind, spec, fence):
                parts.append(part.select(names).slice(0, remaining))
                remaining = None if remaining is None else remaining - parts[-1].num_rows
                if remaining == 0:
                    break
    empty = SCHEMA.empty_table().select(names)
    return pa.concat_tables([empty, *parts])


async def _ranges(mq: Connection, queue: MessageQueue, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of offsets to read between `start` and `end`.

    For a dead-letter queue they leave out the offsets that were deleted.
    """
    deleted = (
        await dead_letter_requests.deleted(mq, queue) if queue.topic.startswith(DLQ_PREFIX) and start < end else []
    )
    ranges = []
    for begin, behind in [*deleted, (end, end)]:
        if start < min(begin, end):
            ranges.append((start, min(begin, end)))
        start = max(start, behind)
    return ranges


async def _offsets(
    mq: Connection, limits: Mapping[MessageQueue, tuple[int, int]], place: ReadPosition
) -> dict[MessageQueue, int]:
    """Return the offset of a checked position in each of these queues.

    For a mapping the result has only the queues that the mapping names.
    """
    if isinstance(place, Mapping):
        for queue, offset in place.items():
            if queue not in limits:
                raise QueueNotFound(f"{queue} is not a queue of the topic that is read")
            low, high = limits[queue]
            if not low <= offset <= high:
                raise OffsetOutOfRange(offset, low, high)
        return dict(place)
    if isinstance(place, str) and not place.startswith(_GROUP):
        return {queue: low if place == "earliest" else high for queue, (low, high) in limits.items()}
    if isinstance(place, str):
        group = place.removeprefix(_GROUP)
        await check_exists(mq, group)
        requests = OffsetRequests(mq, group)
        places = await gather(limits, lambda queue: retry_while_unavailable(lambda: requests.committed(queue)))
    else:
        assert not isinstance(place, datetime)
        at_time = OffsetRequests(mq, "")
        places = await gather(
            limits, lambda queue: retry_while_unavailable(lambda: at_time.first(queue, ConsumeFrom.TIMESTAMP, place))
        )
    pairs = zip(limits.items(), places, strict=True)
    return {queue: low if at is None else min(max(at[0], low), high) for (queue, (low, high)), at in pairs}


async def messages(
    mq: Connection, topic: str, start: ReadPosition, tags: str, *, follow: bool
) -> AsyncGenerator[ReceivedMessage]:
    """Iterate over a topic's messages; see `Admin.tail`."""
    check_topic(topic)
    place = check_read_position("start", start)
    tag_filter = TagFilter.parse(arguments.text("tags", tags))
    arguments.flag("follow", follow)
    reader = _TopicTail(mq, topic, tag_filter)
    await reader.begin(place)
    found = reader.iter_live() if follow else reader.iter_stored()
    async with contextlib.aclosing(found):
        async for message in found:
            yield message


async def following(found: AsyncIterator[ReceivedMessage]) -> ReceivedMessage | None:
    """Return the next message; None after the last one."""
    return await anext(found, None)


async def close(found: AsyncGenerator[ReceivedMessage]) -> None:
    """Close the reader.

    While a cancelled step of the reader is still ending, closing it fails and is tried again.
    """
    for _ in range(_CLOSING_TRIES):
        try:
            await found.aclose()
        except RuntimeError:
            await asyncio.sleep(_CLOSING_SECONDS)
        else:
            return


class _TopicTail:
    """A reader that follows the queues of one topic without a group."""

    def __init__(self, mq: Connection, topic: str, tag_filter: TagFilter) -> None:
        self._mq = mq
        self._topic = topic
        self._wanted = tag_filter
        self._positions: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self._session = f"tail-{uuid.uuid4().hex}"

    async def begin(self, place: ReadPosition) -> None:
        """Look up the start position and the current end of each queue."""
        limits = await self._limits()
        self._ends = {queue: high for queue, (_, high) in limits.items()}
        self._positions = await _offsets(self._mq, limits, place)

    async def _limits(self) -> dict[MessageQueue, tuple[int, int]]:
        found = await bounds(self._mq, [self._topic], {}, RETRY_TIMEOUT_SECONDS)
        return {
            MessageQueue(self._topic, broker, queue_id): (each.low, each.high)
            for (_, broker), of_broker in found.items()
            for queue_id, each in of_broker.queues.items()
            if each.readable
        }

    async def iter_stored(self) -> AsyncGenerator[ReceivedMessage]:
        """Iterate over the messages that are stored now, queue by queue."""
        for queue in sorted(self._positions):
            while self._positions[queue] < self._ends[queue]:
                for message in await retry_while_unavailable(lambda queue=queue: self._fetch([queue], 0.0)):  # type: ignore[misc]
                    if message.queue_offset < self._ends[queue]:
                        yield message

    async def iter_live(self) -> AsyncGenerator[ReceivedMessage]:
        """Iterate without end over the stored messages and those that arrive later.

        Queues that are created later are included.
        """
        arrived: asyncio.Queue[list[ReceivedMessage] | Exception] = asyncio.Queue(2)
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            tasks[""] = asyncio.create_task(self._find_queues(tasks, arrived))
            while True:
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                for message in item:
                    yield message
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _find_queues(
        self, tasks: dict[str, asyncio.Task[None]], arrived: asyncio.Queue[list[ReceivedMessage] | Exception]
    ) -> None:
        """Start a follower for each broker of the topic, also for those added later."""
        try:
            while True:
                for broker in {queue.broker for queue in self._positions} - tasks.keys():
                    tasks[broker] = asyncio.create_task(self._follow(broker, arrived))
                await asyncio.sleep(_WAIT_SECONDS)
                with contextlib.suppress(BrokerUnavailable):
                    for queue, (low, _) in (await self._limits()).items():
                        self._positions.setdefault(queue, low)
        except Exception as error:  # noqa: BLE001 - it is raised to the reader
            await arrived.put(error)

    async def _follow(self, broker: str, arrived: asyncio.Queue[list[ReceivedMessage] | Exception]) -> None:
        """Follow the queues of one broker; while the broker is away, try again."""
        try:
            while True:
                mine = [queue for queue in self._positions if queue.broker == broker]
                try:
                    found = await self._fetch(mine, _WAIT_SECONDS)
                except BrokerUnavailable:
                    await asyncio.sleep(_WAIT_SECONDS / 4)
                    self._mq.routes.invalidate(self._topic)
                    continue
                if found:
                    await arrived.put(found)
        except Exception as error:  # noqa: BLE001 - it is raised to the reader
            await arrived.put(error)

    async def _fetch(self, queues: Sequence[MessageQueue], wait_seconds: float) -> list[ReceivedMessage]:
        """Return the next messages in some queues of one broker and advance their positions.

        Damaged messages are left out.
        """
        codes = self._wanted.codes
        specs = [FetchSpec(queue.topic, queue.queue_id, self._positions[queue], codes) for queue in queues]
        parts = await fetch(
            self._mq,
            queues[0].broker,
            f"{self._session}:{queues[0]}",
            specs,
            _AT_ONCE,
            ANSWER_BYTES,
            wait_seconds,
            check_crc=True,
        )
        found: list[ReceivedMessage] = []
        for part in parts:
            queue = queues[part.index]
            if isinstance(part.error, OffsetOutOfRange):  # the offset has expired, or the topic was recreated
                self._positions[queue] = part.error.min_offset
            elif isinstance(part.error, StoreCorrupt):
                damaged = part.error.queue_offset
                self._positions[queue] = (self._positions[queue] if damaged is None else damaged) + 1
            elif part.error is not None:
                raise part.error
            else:
                found += (each for each in decode_each(part, queue)[0] if self._wanted.passes(each.tags))
                self._positions[queue] = part.next_offset
        return found
