"""Reading queues over sockets: single fetches for consumers, whole ranges as Arrow tables for Spark and others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from raymq.actors.core.backoff import Backoff
from raymq.actors.core.fetching import Wanted
from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.fetch import Fetched, fetch_command, read_fetched
from raymq.client.connection import Connection
from raymq.client.own_connection import OwnConnection
from raymq.client.received import FEW_RECORDS
from raymq.storage.errors import StoreCorrupt
from raymq.storage.record import measure
from raymq.storage.record_batch import BadRecord, parse
from raymq.storage.record_table import table_from_records

#: Bytes of one chunk of a range.
CHUNK_BYTES = 8 * 1024 * 1024
#: How long an unreachable broker is asked again before a read gives up: a restart takes 2 s.
PATIENCE_SECONDS = 30.0
#: What an answer may take beyond the time for which the request may be parked.
ANSWER_SECONDS = 10.0

_T = TypeVar("_T")


async def address_of(mq: Connection, topic: str, broker: str) -> str:
    """Where a broker of `topic` listens; BrokerUnavailable if the routes do not know it."""
    for fresh in (False, True):
        address = (await mq.routes.get(topic, fresh=fresh)).addresses.get(broker)
        if address is not None:
            return address
    raise BrokerUnavailable(broker, f"it is in no route of {topic}")


async def fetch(
    mq: Connection,
    broker: str,
    session: str,
    wanted: Sequence[Wanted],
    max_messages: int,
    max_bytes: int,
    wait_seconds: float,
    group: str | None = None,
    member: str | None = None,
) -> list[Fetched]:
    """One fetch of several queues of one broker; parked there for up to `wait_seconds` if they have nothing.

    With a `group` it is counted for it, and a queue in which the group was reset has the error OffsetReset; the group's
    `member` is known as their owner. Checksums are compared here, once: what this returns is intact.

    Raises:
        BrokerUnavailable: no answer.
    """
    address = await address_of(mq, wanted[0].topic, broker)
    command = fetch_command(session, wanted, max_messages, max_bytes, wait_seconds, group, member, check_crc=False)
    parts = read_fetched(await mq.pool.request(address, command, wait_seconds + ANSWER_SECONDS))
    if all(_is_intact(part) for part in parts):
        return parts
    # The broker, asked to compare the checksums too, gives what is before the damage, or says which file it is in.
    command = fetch_command(session, wanted, max_messages, max_bytes, 0.0, group)
    parts = read_fetched(await mq.pool.request(address, command, ANSWER_SECONDS))
    if not all(_is_intact(part) for part in parts):
        raise BrokerUnavailable(broker, "its records were damaged on the way")
    return parts


def _is_intact(part: Fetched) -> bool:
    """Whether every record's checksum is right."""
    try:
        if len(part.sizes) > FEW_RECORDS:
            parse(part.records, part.sizes)
        else:
            position = 0
            for size in part.sizes.tolist():
                position += measure(part.records, position, position + size)
    except (BadRecord, StoreCorrupt):
        return False
    return True


async def patiently(attempt: Callable[[], Coroutine[None, None, _T]], seconds: float = PATIENCE_SECONDS) -> _T:
    """Repeat what only reads (or may be repeated) while the broker is unreachable, for up to `seconds`."""
    deadline = time.monotonic() + seconds
    backoff = Backoff(first=0.1, cap=1.0)
    while True:
        try:
            return await attempt()
        except BrokerUnavailable:
            wait = backoff.next_delay()
            if time.monotonic() + wait >= deadline:
                raise
            await asyncio.sleep(wait)


class RangeReader(OwnConnection):
    """Reads fixed ranges of queues as Arrow tables. For tasks of other processes: it needs addresses only."""

    def table(self, queue: MessageQueue, start: int, end: int) -> Iterator[pa.Table]:
        """The messages of offsets `start` (inclusive) to `end` (exclusive), in tables of about 8 MB.

        Raises:
            OffsetOutOfRange: part of the range is not there (any more).
            BrokerUnavailable: the broker did not come back within 30 s.
            StoreCorrupt: a record's CRC is wrong.
        """
        session = f"range-{id(self)}-{time.monotonic_ns()}"
        position = start
        while position < end:
            part = self._mq.run(patiently(lambda at=position: self._part(session, queue, at, end)))  # type: ignore[misc]
            yield table_from_records(part.records, part.sizes, broker=queue.broker, check_crc=False)
            position = part.next_offset

    async def _part(self, session: str, queue: MessageQueue, position: int, end: int) -> Fetched:
        wanted = [Wanted(queue.topic, queue.queue_id, position)]
        parts = await fetch(self._mq, queue.broker, session, wanted, end - position, CHUNK_BYTES, 0.0)
        if not parts:
            raise RayMQError(f"{queue} ends at {position}, before the planned end {end}")
        if parts[0].error is not None:
            raise parts[0].error
        return parts[0]
