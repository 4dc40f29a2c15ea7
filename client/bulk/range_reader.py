"""Read ranges of queues as Arrow tables, and query the bounds of queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raymq.actors.errors import BrokerUnavailable, OffsetReset, ProtocolError, RayMQError, TopicNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.sql_filter import compile_sql
from raymq.actors.protocol import PERM_READ, MessageQueue
from raymq.actors.wire.commands import stream_plan_commands as wire
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.actors.wire.commands.stream_plan_commands import TopicBounds
from raymq.client.bulk.coordinator_lookup import REMEDY, is_forgotten, unknown_brokers
from raymq.client.connection import Connection
from raymq.client.members.tag_filter import TagFilter
from raymq.client.requests.broker_requests import ask, retry_while_unavailable
from raymq.client.requests.fan_out import masters
from raymq.client.requests.fetch_request import CHUNK_BYTES, fetch
from raymq.client.task_connection import TaskConnection
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record_table import tables_from_records

#: The name of a topic and that of a broker.
BrokerTopic = tuple[str, str]

#: The time-out of a request for bounds.
_BOUNDS_SECONDS: Final = 10.0


class ReadFence(NamedTuple):
    """The incarnation of a topic and the recovery epoch when its offsets were looked up.

    Both are the broker's values; None where they are not known.
    """

    incarnation: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The filter and the columns of a read; by default all messages and columns.

    It can be pickled.

    Attributes:
        tags: only messages with one of these tags; the broker compares their hashes, the reader their text.
        sql: only messages for which this SQL92 expression is true; the broker evaluates it.
        columns: the columns of a table of messages; without "body" the broker sends no bodies.
    """

    tags: frozenset[str] | None = None
    sql: str | None = None
    columns: frozenset[str] | None = None

    @property
    def is_unfiltered(self) -> bool:
        """Return True if no message is left out."""
        return self.tags is None and self.sql is None

    @property
    def bodies(self) -> bool:
        """Return True if bodies are read."""
        return self.columns is None or "body" in self.columns

    def of(self, queue: MessageQueue, offset: int, fence: ReadFence) -> FetchSpec:
        """Return the fetch of a queue from `offset` on, an offset that `fence` applies to."""
        sql = None if self.sql is None else compile_sql(self.sql)
        codes = None if self.tags is None else TagFilter("", self.tags).codes
        return FetchSpec(queue.topic, queue.queue_id, offset, codes, sql, fence.epoch, fence.incarnation)


#: All messages with all columns.
READ_ALL = ReadSpec()
#: No check whether the topic or the log has changed.
NO_FENCE = ReadFence()
_AGAIN = "start the read again"


class RangeLost(RayMQError):
    """The error that messages of a planned read are lost and others have their offsets."""


def topic_recreated(topic: str, broker: str) -> RangeLost:
    """Return the error of a range whose topic was deleted and recreated."""
    reason = f"topic {topic} was deleted and recreated on {broker} after the read was planned"
    return RangeLost(reason, remedy=_AGAIN)


def range_lost(queue: MessageQueue, retained: int) -> RangeLost:
    """Return the error of a range that lost its messages from offset `retained` on.

    They were lost by a power failure.
    """
    reason = f"a power failure lost the messages of {queue} from offset {retained} on after the read was planned"
    return RangeLost(reason, remedy=_AGAIN)


def _begun(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Create the first table now, so that an error in the records is raised here."""
    first = next(tables, None)
    return iter(()) if first is None else chain((first,), tables)


@dataclass(slots=True)
class _RangeRead:
    """The state of the read of a range.

    `fence` is updated to the broker's current epoch if no message of the range is lost.
    """

    session: str
    queue: MessageQueue
    end: int
    spec: ReadSpec
    fence: ReadFence


class RangeReader(TaskConnection):
    """A reader of fixed ranges of queues as Arrow tables.

    For tasks of other processes: it needs addresses only.
    """

    def table(
        self, queue: MessageQueue, start: int, end: int, spec: ReadSpec = READ_ALL, fence: ReadFence = NO_FENCE
    ) -> Iterator[pa.Table]:
        """Iterate over the selected messages of a range of offsets as Arrow tables.

        The range is from `start` (inclusive) to `end` (exclusive). A table has about 8 MB of records, whose bodies are
        at most 64 MiB (and one body) when they are decompressed.

        Args:
            spec: the messages and columns to read.
            fence: the incarnation of the topic and the recovery epoch at the time when the range was planned; messages
                that have replaced those of the range since are not read.

        Raises:
            RayMQError: the topic was deleted and recreated, or a power failure has lost some of the range.
            OffsetOutOfRange: part of the range is not there (any more).
            BrokerUnavailable: the broker did not come back within 30 s.
            StoreCorrupt: a record's CRC is wrong.
            ProtocolError: the broker's answer is invalid.
        """
        session = f"range-{id(self)}-{time.monotonic_ns()}"
        request = _RangeRead(session, queue, end, spec, fence)

        def begin(position: int) -> Future[Fetched]:
            return self._begin_patiently(queue.topic, lambda: self._part(request, position))

        position = start
        coming = begin(position) if position < end else None
        try:
            while coming is not None:
                part, tables = self._tables(coming, request, position)
                position = part.next_offset
                # The broker reads the next part while this one is processed.
                coming = begin(position) if position < end else None
                yield from (table for table in tables if table.num_rows)
        finally:
            if coming is not None:
                coming.cancel()

    def _tables(
        self, coming: Future[Fetched], request: _RangeRead, position: int
    ) -> tuple[Fetched, Iterator[pa.Table]]:
        """Wait for a part, and return it with its tables.

        Only the first table can raise an error, and it is created here. If a record is damaged, the part is fetched
        again with `check_crc`.
        """
        part = self._mq.wait(coming)
        try:
            return part, _begun(_tables(part, request))
        except StoreCorrupt:
            part = self._patiently(request.queue.topic, lambda: self._part(request, position, check_crc=True))
            return part, _begun(_tables(part, request))

    async def _part(self, request: _RangeRead, position: int, *, check_crc: bool = False) -> Fetched:
        queue, epoch = request.queue, request.fence.epoch
        epochs: list[int] = []
        parts = await fetch(
            self._mq,
            queue.broker,
            request.session,
            [request.spec.of(queue, position, request.fence)],
            request.end - position,
            CHUNK_BYTES,
            0.0,
            check_crc=check_crc,
            bodies=request.spec.bodies,
            on_epoch=epochs.append,
        )
        if epoch is not None and epochs and epochs[0] != epoch:  # the answer may have records that replaced lost ones
            retained = await retained_end(self._mq, queue, epoch)
            if retained is not None and request.end > retained:
                raise range_lost(queue, retained)
            request.fence = request.fence._replace(epoch=epochs[0])
            return await self._part(request, position, check_crc=check_crc)
        if not parts:
            raise RayMQError(f"{queue} ends at {position}, before the planned end {request.end}")
        error = parts[0].error
        if isinstance(error, OffsetReset):
            raise (
                range_lost(queue, error.offset)
                if error.incarnation is None
                else topic_recreated(queue.topic, queue.broker)
            )
        if error is not None:
            raise error
        if parts[0].next_offset <= position:  # it would be fetched again without end
            raise ProtocolError(
                f"{queue.broker} returned no message of {queue} at {position}, and the same offset as the next one"
            )
        return parts[0]


def _tables(part: Fetched, request: _RangeRead) -> Iterator[pa.Table]:
    """Iterate over the tables of a part that match, up to the range's end.

    With a filter a part may go beyond the end.
    """
    spec = request.spec
    count = int(np.searchsorted(part.offsets, request.end))
    sizes = part.sizes[:count]
    records = part.records[: int(sizes.sum(dtype=np.int64))]
    columns = spec.columns
    if spec.tags is not None and columns is not None:
        columns = columns | {"tags"}
    for table in tables_from_records(records, sizes, broker=request.queue.broker, columns=columns):
        if spec.tags is None:
            yield table
        else:
            yield table.filter(pc.is_in(table.column("tags"), pa.array(sorted(spec.tags))))


async def bounds(
    mq: Connection,
    topics: Iterable[str],
    epochs: Mapping[BrokerTopic, int],
    seconds: float,
    *,
    skip_missing: bool = False,
    brokers: Collection[str] | None = None,
) -> dict[BrokerTopic, TopicBounds]:
    """Return the minimum and maximum offsets of the topics' queues, by topic and broker.

    The brokers are those that have the topics or are named in `epochs`, except brokers that are permanently gone, as
    all others have recorded (`Admin.forget_broker`, `raymq broker drain --remove`).

    Args:
        epochs: the recovery epochs that the caller has. Their brokers, too, are waited for while they are away.
        seconds: the time to wait for brokers that are away.
        skip_missing: leave out topics that do not exist.
        brokers: the brokers to ask; None: all.

    Raises:
        TopicNotFound, PermissionDenied: an error that a broker returned.
        BrokerUnavailable: a broker did not come back in time.
    """
    names = list(topics)
    return await retry_while_unavailable(
        lambda: _bounds(mq, names, epochs, brokers, skip_missing=skip_missing), seconds
    )


async def _bounds(
    mq: Connection,
    topics: list[str],
    epochs: Mapping[BrokerTopic, int],
    brokers: Collection[str] | None,
    *,
    skip_missing: bool,
) -> dict[BrokerTopic, TopicBounds]:
    if topics and not epochs and brokers is None and (unknown := await unknown_brokers(mq)):
        reason = "not reachable, and a name server that was just started has no record of its topics"
        raise BrokerUnavailable(", ".join(unknown), reason, remedy=REMEDY)
    addresses: dict[BrokerTopic, str] = {}
    away: set[BrokerTopic] = set()
    for topic in topics:
        try:
            # without epochs the route is the only source of the brokers
            route = await mq.routes.readable(topic, fresh=not epochs)
        except TopicNotFound:
            if not skip_missing:
                raise
            continue
        addresses |= {(topic, broker): at for broker, at in route.addresses.items()}
        away |= {(topic, each.data.broker) for each in route.away if each.data.perm & PERM_READ}
    if brokers is not None:
        addresses = {origin: at for origin, at in addresses.items() if origin[1] in brokers}
        away = {origin for origin in away if origin[1] in brokers}
    if lacking := (away | epochs.keys()) - addresses.keys():
        known = await masters(mq)
        for origin in lacking:
            if origin[1] in known:
                addresses[origin] = known[origin[1]]
            elif origin in away or not await is_forgotten(mq, origin[1]):
                raise BrokerUnavailable(origin[1], f"it has queues of {origin[0]}, but no name server lists it now")

    async def ask(origin: BrokerTopic) -> TopicBounds | None:
        try:
            command = wire.topic_bounds_command(origin[0], epochs.get(origin, 0))
            return wire.read_topic_bounds(await mq.pool.request(addresses[origin], command, _BOUNDS_SECONDS))
        except RayMQError as error:
            mq.routes.invalidate(origin[0])
            if skip_missing and isinstance(error, TopicNotFound):
                return None
            raise

    answers = await asyncio.gather(*map(ask, addresses))
    return {origin: each for origin, each in zip(addresses, answers, strict=True) if each is not None}


async def retained_end(mq: Connection, queue: MessageQueue, epoch: int) -> int | None:
    """Return the offset up to which a queue is unchanged since that recovery epoch.

    None: all of it is unchanged. Raise as `ask`.
    """
    command = wire.topic_bounds_command(queue.topic, epoch)
    topic_bounds = wire.read_topic_bounds(await ask(mq, queue.topic, queue.broker, command, _BOUNDS_SECONDS))
    each = topic_bounds.queues.get(queue.queue_id)
    return None if each is None else each.kept
