"""Fetch ranges of messages in Spark's Python workers, as the columns of a DataFrame.

The task connects to the brokers' sockets directly. This module imports neither Ray nor Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from raymq.actors.protocol import Tls
from raymq.client.bulk.range_reader import NO_FENCE, BrokerTopic, RangeLost, RangeReader, ReadFence, ReadSpec
from raymq.client.errors import OffsetOutOfRange, QueueNotFound, RayMQError, TopicNotFound
from raymq.client.task_connection import shared_connection
from raymq.spark_bridge.batch_plan import TopicEpoch
from raymq.spark_bridge.body_decoder import BodyDecoder
from raymq.spark_bridge.offset_ranges import OffsetRange, check_not_lost, remaining_ranges
from raymq.spark_bridge.table_batches import cast_column
from raymq.storage.records.record_table import CONTENT_TYPE

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

_log = logging.getLogger("raymq.spark")


#: In the order of the DataFrame. `queue` is made of two columns; the others are unchanged.
ENVELOPE = (
    "topic",
    "queue",
    "offset",
    "message_id",
    "unique_key",
    "keys",
    "tags",
    "properties",
    "born_timestamp",
    "store_timestamp",
)


#: The columns that `queue` is made of.
_OF_QUEUE = frozenset({"broker", "queue_id"})


@dataclass(frozen=True, slots=True)
class FetchRanges:
    """A function for `spark.range(0, n, 1, n).mapInArrow`: row i becomes the messages of range i."""

    name_servers: tuple[str, ...]
    ranges: tuple[OffsetRange, ...]
    schema: pa.Schema
    """The columns to read, of a message or of its decoded body."""
    decoder: BodyDecoder | None
    tls: Tls | None = None
    tags: frozenset[str] | None = None
    """The tags of the messages to read; None reads all."""
    sql: str | None = None
    """The SQL expression of the messages to read; None reads all."""
    counted: Accumulator[int] | None = None
    """The counter of the messages that were read, also of those that did not match."""
    planned: Mapping[BrokerTopic, TopicEpoch] | None = None
    """The topics' ids and epochs when the ranges were planned; None if unknown."""
    skip_losses: bool = False
    """Whether lost messages are skipped, with a warning, instead of failing the task."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages, about 8 MB per batch; Spark calls this in a task."""
        columns = needed_columns(self.schema.names, decoded=self.decoder is not None)
        spec = ReadSpec(self.tags, self.sql, columns | {"offset"})
        with RangeReader(self.name_servers, self.tls) as reader:
            for batch in batches:
                requested = [self.ranges[number] for number in batch.column(0).to_pylist()]
                remaining, fence = self._remaining(requested)
                fetch = self._fetch_skipping_losses if self.skip_losses else self._fetch
                for offset_range in remaining:
                    of_then = fence.get((offset_range.queue.topic, offset_range.queue.broker), NO_FENCE)
                    yield from fetch(reader, offset_range, spec, of_then)
                    if self.counted is not None:
                        self.counted.add(offset_range.end - offset_range.start)

    def _remaining(self, ranges: list[OffsetRange]) -> tuple[list[OffsetRange], Mapping[BrokerTopic, ReadFence]]:
        """Return the ranges that still have messages, and the fences for their requests.

        With a fence a request fails if the messages were replaced in the meantime.
        """
        if self.planned is None:
            return ranges, {}
        mq = shared_connection(self.name_servers, self.tls)
        if not self.skip_losses:
            return ranges, check_not_lost(mq, ranges, self.planned)
        remaining, fence = remaining_ranges(mq, ranges, self.planned)
        for before, after in zip(ranges, remaining, strict=True):
            if after.end < before.end:
                _log.warning("skipped %s from %d to %d: these messages are lost", before.queue, after.end, before.end)
        return remaining, fence

    def _fetch_skipping_losses(
        self, reader: RangeReader, offset_range: OffsetRange, spec: ReadSpec, fence: ReadFence
    ) -> Iterator[pa.RecordBatch]:
        """Fetch a range as `_fetch` does, and skip missing messages with a warning."""
        at = offset_range.start
        while at < offset_range.end:
            try:
                yield from self._fetch(reader, OffsetRange(offset_range.queue, at, offset_range.end), spec, fence)
            except OffsetOutOfRange as error:
                if error.min_offset <= at:
                    raise
                next_offset = min(error.min_offset, offset_range.end)
                _log.warning("skipped %s from %d to %d: %s", offset_range.queue, at, next_offset, error)
                at = next_offset
            except (RangeLost, TopicNotFound, QueueNotFound) as error:
                _log.warning(
                    "skipped the unread messages of %s up to %d: %s", offset_range.queue, offset_range.end, error
                )
                return
            else:
                return

    def _fetch(
        self, reader: RangeReader, offset_range: OffsetRange, spec: ReadSpec, fence: ReadFence
    ) -> Iterator[pa.RecordBatch]:
        at = offset_range.start
        for table in reader.table(offset_range.queue, offset_range.start, offset_range.end, spec, fence):
            offsets = table.column("offset").to_numpy()
            if offsets[0] < at or offsets[-1] >= offset_range.end:
                raise RayMQError(
                    f"{offset_range.queue}: expected offsets from {at} to {offset_range.end}, got {offsets}"
                )
            if spec.is_unfiltered and offsets[-1] != at + len(offsets) - 1:
                raise RayMQError(f"{offset_range.queue}: expected offsets from {at} on, got {offsets}")
            at = int(offsets[-1]) + 1
            yield self._to_batch(table)
        if spec.is_unfiltered and at != offset_range.end:
            raise RayMQError(f"{offset_range.queue} ended at {at}, before {offset_range.end}")

    def _to_batch(self, table: pa.Table) -> pa.RecordBatch:
        decoded_columns: dict[str, pa.Array] = {}
        if self.decoder is not None and "body" in table.column_names:
            types = pc.map_lookup(table.column("properties").combine_chunks(), CONTENT_TYPE, "last")
            decoded = self.decoder.decode(table.column("body").combine_chunks(), types)
            decoded_columns = dict(zip(self.decoder.names, decoded, strict=True))
        columns = [
            decoded_columns[name] if name in decoded_columns else envelope_column(table, name)
            for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(
            [cast_column(column, field.type) for column, field in zip(columns, self.schema, strict=True)],
            schema=self.schema,
        )


def needed_columns(names: Iterable[str], *, decoded: bool) -> frozenset[str]:
    """Return the table columns from which the DataFrame columns `names` are made.

    Args:
        decoded: whether other names than a message's columns are decoded from its body.
    """
    needed: set[str] = set()
    for name in names:
        if name == "queue":
            needed |= _OF_QUEUE
        elif name in ENVELOPE:
            needed.add(name)
        else:
            needed |= {"body", "properties"} if decoded else {"body"}
    return frozenset(needed)


def envelope_column(table: pa.Table, name: str) -> pa.Array:
    """Return a DataFrame column, from a table as `storage.records.table` makes it."""
    if name == "queue":
        parts = [table.column(part).combine_chunks() for part in ("broker", "queue_id")]
        return pa.StructArray.from_arrays(parts, names=["broker", "id"])
    return table.column(name).combine_chunks()
