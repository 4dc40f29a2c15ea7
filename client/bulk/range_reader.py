"""Whole ranges of queues as Arrow tables, for Spark's tasks and others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from raymq.actors.errors import RayMQError
from raymq.actors.filter.wanted import Wanted
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch import Fetched
from raymq.client.requests.asking import patiently
from raymq.client.requests.fetching import CHUNK_BYTES, fetch
from raymq.client.task_connection import OwnConnection
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.table import tables_from_records


def _begun(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of which the first is made: whatever is wrong with their records has been raised."""
    first = next(tables, None)
    return iter(()) if first is None else chain((first,), tables)


class RangeReader(OwnConnection):
    """Reads fixed ranges of queues as Arrow tables. For tasks of other processes: it needs addresses only."""

    def table(self, queue: MessageQueue, start: int, end: int) -> Iterator[pa.Table]:
        """The messages of offsets `start` (inclusive) to `end` (exclusive), in tables of about 8 MB of records, whose
        bodies are at most 64 MiB (and one) when they are decompressed.

        Raises:
            OffsetOutOfRange: part of the range is not there (any more).
            BrokerUnavailable: the broker did not come back within 30 s.
            StoreCorrupt: a record's CRC is wrong.
        """
        session = f"range-{id(self)}-{time.monotonic_ns()}"
        position = start
        while position < end:
            part, tables = self._tables(session, queue, position, end)
            yield from tables
            position = part.next_offset

    def _tables(self, session: str, queue: MessageQueue, position: int, end: int) -> tuple[Fetched, Iterator[pa.Table]]:
        """What is there, and its tables: nothing but the first of them can fail, and that is made."""
        part = self._mq.run(patiently(lambda: self._part(session, queue, position, end)))
        try:
            return part, _begun(tables_from_records(part.records, part.sizes, broker=queue.broker))
        except StoreCorrupt:
            part = self._mq.run(patiently(lambda: self._part(session, queue, position, end, check_crc=True)))
            return part, _begun(tables_from_records(part.records, part.sizes, broker=queue.broker))

    async def _part(
        self, session: str, queue: MessageQueue, position: int, end: int, *, check_crc: bool = False
    ) -> Fetched:
        wanted = [Wanted(queue.topic, queue.queue_id, position)]
        limits = (end - position, CHUNK_BYTES)
        parts = await fetch(self._mq, queue.broker, session, wanted, *limits, 0.0, check_crc=check_crc)
        if not parts:
            raise RayMQError(f"{queue} ends at {position}, before the planned end {end}")
        if parts[0].error is not None:
            raise parts[0].error
        return parts[0]
