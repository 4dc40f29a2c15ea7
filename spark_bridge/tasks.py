"""What runs in Spark's Python workers: pull a range of messages, stage rows as messages.

Both talk to the brokers' sockets directly. Nothing here imports Ray, and nothing but Spark's own task context.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raymq.actors.protocol import Tls
from raymq.client import MessageQueue
from raymq.client.bulk.range_reader import RangeReader
from raymq.client.bulk.staging import StagedWriter
from raymq.client.errors import RayMQError
from raymq.client.produce.encoding import cut_parts, rows_of_a_part
from raymq.spark_bridge.decode import BodyDecoder
from raymq.spark_bridge.envelope import envelope_columns
from raymq.spark_bridge.ranges import Range
from raymq.storage.records.table import CONTENT_TYPE, Rows, checked_rows
from raymq.storage.records.unique_keys import UniqueKeys

#: What a row's message says of its sender's address.
_NO_HOST = ("127.0.0.1", 0)
_STAGED = pa.schema([("part", pa.string()), ("broker", pa.string()), ("rows", pa.int64())])


@dataclass(frozen=True, slots=True)
class FetchRanges:
    """For `spark.range(0, n, 1, n).mapInArrow`: row number i becomes the messages of range i."""

    name_servers: tuple[str, ...]
    ranges: tuple[Range, ...]
    schema: pa.Schema
    decoder: BodyDecoder | None
    tls: Tls | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's entry: yields the messages, about 8 MB a batch."""
        with RangeReader(self.name_servers, self.tls) as reader:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._fetch(reader, self.ranges[number])

    def _fetch(self, reader: RangeReader, wanted: Range) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        for table in reader.table(wanted.queue, wanted.start, wanted.end):
            offsets = table.column("offset")
            if offsets[0].as_py() != at or offsets[-1].as_py() != at + table.num_rows - 1:
                raise RayMQError(f"{wanted.queue}: offsets from {at} on were asked for, {offsets[0]} came")
            at += table.num_rows
            yield self._to_batch(table)
        if at != wanted.end:
            raise RayMQError(f"{wanted.queue} ended at {at}, before {wanted.end}")

    def _to_batch(self, table: pa.Table) -> pa.RecordBatch:
        columns = envelope_columns(table)
        bodies = table.column("body").combine_chunks()
        if self.decoder is None:
            columns.append(bodies)
        else:
            own = table.column("properties").combine_chunks()
            columns += self.decoder.decode(bodies, pc.map_lookup(own, CONTENT_TYPE, "last"))
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)], schema=self.schema
        )


@dataclass(frozen=True, slots=True)
class StageRows:
    """For `df.mapInArrow`: stages the rows of a partition and yields what it staged where (part, broker, rows).

    Every attempt at a task has parts of its own. The driver commits only those that it got an answer from, so that
    what a failed, killed or overtaken attempt left is never seen.
    """

    name_servers: tuple[str, ...]
    transaction: str
    queues: tuple[MessageQueue, ...]
    columns: tuple[str, ...]
    """Which of body, keys, tags, properties the rows have."""
    tls: Tls | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's entry."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        part = f"{partition}-{uuid.uuid4().hex}"
        staged: dict[str, int] = {}
        unique_keys = UniqueKeys()
        number = 0
        with StagedWriter(self.name_servers, self.tls) as writer:
            for batch in batches:
                for rows in self._chunks(pa.Table.from_batches([batch])):
                    # Partitions begin at different queues and go round: brokers share even a single partition.
                    queue = self.queues[(partition + number) % len(self.queues)]
                    records, sizes = rows.encode(
                        queue.topic, queue.queue_id, unique_keys=unique_keys, born_host=_NO_HOST
                    )
                    writer.stage(self.transaction, part, number, queue, records, sizes)
                    staged[queue.broker] = staged.get(queue.broker, 0) + len(sizes)
                    number += 1
        columns = [[part] * len(staged), list(staged), list(staged.values())]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _STAGED, strict=True)], schema=_STAGED
        )

    def _chunks(self, table: pa.Table) -> Iterator[Rows]:
        """The rows of `table` in pieces that a broker takes; a piece has at least one row.

        They are cut by the sizes of their records: how large a row is in Arrow says little, since a struct is packed
        and several keys become one text. That would need the whole table a second time in memory, so it goes by steps.
        """
        topic = self.queues[0].topic
        step = rows_of_a_part(table, topic)
        for start in range(0, table.num_rows, step):
            rows = checked_rows(
                table.slice(start, step),
                body="body",
                keys="keys" if "keys" in self.columns else None,
                tags="tags" if "tags" in self.columns else None,
                properties="properties" if "properties" in self.columns else None,
            )
            for which, _ in cut_parts(rows.record_sizes(topic)):
                yield rows.slice(which.start, which.stop)
