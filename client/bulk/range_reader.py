"""Whole ranges of queues as Arrow tables, for Spark's tasks and others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raymq.actors.errors import OffsetReset, ProtocolError, RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch import Fetched
from raymq.client.bulk.streams import kept_of
from raymq.client.bulk.wish import Lived, Wish
from raymq.client.requests.fetching import CHUNK_BYTES, fetch
from raymq.client.task_connection import TaskConnection
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.table import tables_from_records

#: All messages, with all that they have.
EVERYTHING = Wish()
#: Whatever is there.
ANYTHING = Lived()
_AGAIN = "read it anew"


class RangeLost(RayMQError):
    """Messages that were planned to be read are gone, and others have their offsets."""


def made_anew(topic: str, broker: str) -> RangeLost:
    """Return the error of a range whose topic was deleted and made anew."""
    told = f"topic {topic} was deleted and made anew on {broker} since the read was planned"
    return RangeLost(told, remedy=_AGAIN)


def lost(queue: MessageQueue, kept: int) -> RangeLost:
    """Return the error of a range of which a loss of power took the messages from offset `kept` on."""
    told = f"a loss of power took messages of {queue} from {kept} on since the read was planned"
    return RangeLost(told, remedy=_AGAIN)


def _begun(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of which the first is made: whatever is wrong with their records has been raised."""
    first = next(tables, None)
    return iter(()) if first is None else chain((first,), tables)


@dataclass(slots=True)
class _Asked:
    """A range that is read. `lived` is brought up to date where nothing of it is lost."""

    session: str
    queue: MessageQueue
    end: int
    wish: Wish
    lived: Lived


class RangeReader(TaskConnection):
    """Reads fixed ranges of queues as Arrow tables. For tasks of other processes: it needs addresses only."""

    def table(
        self, queue: MessageQueue, start: int, end: int, wish: Wish = EVERYTHING, lived: Lived = ANYTHING
    ) -> Iterator[pa.Table]:
        """The messages of offsets `start` (inclusive) to `end` (exclusive) that are wished for, in tables of about
        8 MB of records, whose bodies are at most 64 MiB (and one) when they are decompressed.

        Args:
            lived: when the range was looked up; what has come in the place of its messages since is not read.

        Raises:
            RayMQError: the topic is another one of the same name, or a loss of power has taken some of the range.
            OffsetOutOfRange: part of the range is not there (any more).
            BrokerUnavailable: the broker did not come back within 30 s.
            StoreCorrupt: a record's CRC is wrong.
            ProtocolError: the broker's answer makes no sense.
        """
        session = f"range-{id(self)}-{time.monotonic_ns()}"
        asked = _Asked(session, queue, end, wish, lived)

        def begin(position: int) -> Future[Fetched]:
            return self._begin_patiently(queue.topic, lambda: self._part(asked, position))

        position = start
        coming = begin(position) if position < end else None
        try:
            while coming is not None:
                part, tables = self._tables(coming, asked, position)
                position = part.next_offset
                # The broker looks for the next part while this one is worked on.
                coming = begin(position) if position < end else None
                yield from (table for table in tables if table.num_rows)
        finally:
            if coming is not None:
                coming.cancel()

    def _tables(self, coming: Future[Fetched], asked: _Asked, position: int) -> tuple[Fetched, Iterator[pa.Table]]:
        """What is there, and its tables: nothing but the first of them can fail, and that is made."""
        part = self._mq.wait(coming)
        try:
            return part, _begun(_tables(part, asked))
        except StoreCorrupt:
            part = self._patiently(asked.queue.topic, lambda: self._part(asked, position, check_crc=True))
            return part, _begun(_tables(part, asked))

    async def _part(self, asked: _Asked, position: int, *, check_crc: bool = False) -> Fetched:
        queue, epoch = asked.queue, asked.lived.epoch
        told: list[int] = []
        parts = await fetch(
            self._mq,
            queue.broker,
            asked.session,
            [asked.wish.of(queue, position, asked.lived)],
            asked.end - position,
            CHUNK_BYTES,
            0.0,
            check_crc=check_crc,
            bodies=asked.wish.bodies,
            on_epoch=told.append,
        )
        if epoch is not None and told and told[0] != epoch:  # what has come may be what is stored there now
            kept = await kept_of(self._mq, queue, epoch)
            if kept is not None and asked.end > kept:
                raise lost(queue, kept)
            asked.lived = asked.lived._replace(epoch=told[0])
            return await self._part(asked, position, check_crc=check_crc)
        if not parts:
            raise RayMQError(f"{queue} ends at {position}, before the planned end {asked.end}")
        error = parts[0].error
        if isinstance(error, OffsetReset):
            raise lost(queue, error.offset) if error.incarnation is None else made_anew(queue.topic, queue.broker)
        if error is not None:
            raise error
        if parts[0].next_offset <= position:  # it would be asked for without end
            raise ProtocolError(f"{queue.broker} gives nothing of {queue} at {position}, and says to go on there")
        return parts[0]


def _tables(part: Fetched, asked: _Asked) -> Iterator[pa.Table]:
    """What is wished for of a part, up to the range's end: what passes a filter may lie behind it."""
    wish = asked.wish
    count = int(np.searchsorted(part.offsets, asked.end))
    sizes = part.sizes[:count]
    records = part.records[: int(sizes.sum(dtype=np.int64))]
    columns = wish.columns
    if wish.tags is not None and columns is not None:
        columns = columns | {"tags"}
    for table in tables_from_records(records, sizes, broker=asked.queue.broker, columns=columns):
        if wish.tags is None:
            yield table
        else:
            yield table.filter(pc.is_in(table.column("tags"), pa.array(sorted(wish.tags))))
