"""Stage the rows of a partition on the brokers, in Spark's Python workers.

Rows become chunks of records, each for one queue. There are as few chunks as possible, and none is larger than the
brokers accept. Spark passes rows in small batches; a request for each batch would cost more than its rows. So rows are
gathered until a chunk is full. No more rows than that are held, however many rows a partition has.

A producer of the same cluster chooses the same queue for the same sharding key. The task connects to the brokers'
sockets directly. This module imports neither Ray nor Spark, apart from Spark's task context.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.actors.protocol import Tls
from raymq.actors.request_limits import PART_BYTES
from raymq.client import MessageQueue
from raymq.client.arguments import TIME
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.errors import InvalidInput
from raymq.client.produce.message_encoder import cut_parts, rows_per_part
from raymq.client.timestamps import checked_due_time
from raymq.spark_bridge.table_batches import cast_column
from raymq.storage.records import message_limits
from raymq.storage.records import property_names as names
from raymq.storage.records.java_hash import java_hash, java_hashes
from raymq.storage.records.property_columns import spans
from raymq.storage.records.record_table import CheckedRows, checked_rows
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator

Int64s = npt.NDArray[np.int64]

#: The sender's address in a row's message.
_NO_HOST: Final = ("127.0.0.1", 0)
#: The size of the first chunk of rows without keys. Each chunk is twice as large as the one before, up to a part: so
#: small partitions use several queues too, and large partitions use few requests.
_FIRST_BYTES: Final = PART_BYTES // 16
#: Rows with keys are gathered for all queues at the same time.
_KEYED_BYTES: Final = 2 * PART_BYTES
#: Delays are below this number. Higher delay levels than any broker has are treated as the same level.
_WAIT_RANGE: Final = 1 << 31
#: The most rows of a delayed chunk, because a broker rewrites each row of it.
_WAITING_ROWS: Final = 2_000
_STAGED = pa.schema([("part", pa.string()), ("broker", pa.string()), ("rows", pa.int64())])
#: The queue number of a row without a key: it may go to any queue.
NO_KEY = -1
#: The delay of a row: none, or a delivery time of its own; a positive number is a delay level.
NO_DELAY: Final = 0
TIMED: Final = -1
#: Later than every valid time: a time that is clipped to this value is refused.
_MAX_MS: Final = 10**17
_US_A_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StageRows:
    """A function for `df.mapInArrow` that stages the rows of a partition.

    It yields the staged parts as (part, broker, rows). Every attempt at a task has parts of its own. The driver commits
    only the parts of attempts that returned a result, so that the rows of a failed, killed or superseded attempt never
    become visible.
    """

    name_servers: tuple[str, ...]
    transaction: str
    queues: tuple[MessageQueue, ...]
    columns: tuple[str, ...]
    """The columns of the rows, see `write_columns`."""
    tls: Tls | None = None
    coordinator: str = ""
    """The broker that coordinates the transaction."""
    common: bytes = b""
    """Properties of all rows, as they are stored."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of a partition; Spark calls this in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        part = f"{partition}-{uuid.uuid4().hex}"
        staged: dict[str, int] = {}
        # Each partition begins at another queue, and each write too.
        builder = ChunkBuilder(
            self.queues, zlib.crc32(self.transaction.encode()) + partition, self.columns, self.common
        )
        with StagedWriter(self.name_servers, self.tls) as writer:
            for number, chunk in enumerate(builder.chunks(batches)):
                writer.begin(
                    *(self.transaction, part, number, chunk.queue, chunk.records, chunk.sizes),
                    coordinator=self.coordinator,
                    delayed=chunk.delayed,
                )
                staged[chunk.queue.broker] = staged.get(chunk.queue.broker, 0) + len(chunk.sizes)
            writer.settle()
        columns = [[part] * len(staged), list(staged), list(staged.values())]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _STAGED, strict=True)], schema=_STAGED
        )


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records of one queue.

    `delayed`: all of them wait for delivery times, or all wait for the same delay level.
    """

    queue: MessageQueue
    records: bytearray
    sizes: npt.NDArray[np.int32]
    delayed: bool


class ChunkBuilder:
    """A builder of chunks from the rows of one partition, for use by one thread."""

    def __init__(self, queues: Sequence[MessageQueue], first: int, columns: Sequence[str], common: bytes = b"") -> None:
        """Create a builder; `columns` are the columns of the rows, see `write_columns`.

        Args:
            queues: the topic's writable queues.
            first: the number of the queue for the first chunk of rows without keys; the next chunks use the queues in
                turn.
            common: properties of all rows, as they are stored.
        """
        self._common = common
        self._topic = queues[0].topic
        self._sorted = sorted(queues)
        #: Adjacent queues are on different brokers.
        self._round = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker))
        self._turn = first
        self._columns = frozenset(columns)
        self._by = next((name for name in ("sharding_key", "keys") if name in self._columns), None)
        self._waits = bool(self._columns & {"deliver_at", "delay_level"})
        self._unique_keys = UniqueKeyGenerator()
        #: The rows, and for each row one number that encodes its queue and its delay.
        self._held: list[tuple[CheckedRows, Int64s]] = []
        self._held_bytes = 0
        self._most_bytes = _FIRST_BYTES if self._by is None else _KEYED_BYTES

    def add(self, table: pa.Table) -> Iterator[RecordChunk]:
        """Yield the chunks that are full after the rows of `table` are added.

        Chunks are cut by the sizes of their records. The size of a row in Arrow says little about its record, since a
        struct is packed and several keys become one text. Encoding the whole table would hold it in memory twice, so it
        is processed in steps.

        Raises:
            InvalidInput: a row violates a rule of messages.
        """
        # `nbytes` would fail: it reads offsets that Java's Arrow omits for lists in lists without values.
        step = rows_per_part(table.num_rows, table.get_total_buffer_size(), self._topic)
        for start in range(0, table.num_rows, step):
            self._hold(table.slice(start, step))
            if self._held_bytes >= self._most_bytes:
                yield from self._release(*self._full())

    def flush(self) -> Iterator[RecordChunk]:
        """Yield the chunks of the rows that are still held."""
        if self._held:
            yield from self._release(*self._taken())

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[RecordChunk]:
        """Yield the chunks of all rows of a partition; as `add`."""
        for batch in batches:
            yield from self.add(pa.Table.from_batches([batch]))
        yield from self.flush()

    def _hold(self, table: pa.Table) -> None:
        keys, tags, properties = (name if name in self._columns else None for name in ("keys", "tags", "properties"))
        rows = checked_rows(table, body="body", keys=keys, tags=tags, properties=properties)
        count = table.num_rows
        waits = np.zeros(count, np.int64)
        if self._waits:
            times = (name if name in self._columns else None for name in ("deliver_at", "delay_level"))
            found = delivery_times(table, *times)
            rows, waits = rows.with_properties(found.texts), found.waits
        if self._common:
            rows = rows.with_common(self._common)
        numbers = np.full(count, NO_KEY, np.int64)
        if self._by is not None:
            numbers = queues_for_keys(table.column(self._by).combine_chunks(), len(self._sorted))
        self._held.append((rows, numbers * _WAIT_RANGE + np.minimum(waits, _WAIT_RANGE - 2) + 1))
        self._held_bytes += int(rows.record_sizes(self._topic).sum())

    def _taken(self) -> tuple[CheckedRows, Int64s]:
        """Return all rows that are held, and hold none afterwards."""
        parts, self._held, self._held_bytes = self._held, [], 0
        return CheckedRows.concatenated([rows for rows, _ in parts]), np.concatenate([places for _, places in parts])

    def _full(self) -> tuple[CheckedRows, Int64s]:
        """Return the rows of full chunks, and keep the rows of a partial chunk."""
        rows, places = self._taken()
        if self._by is None:
            sizes = rows.record_sizes(self._topic)
            (*full, last) = (which for which, _ in cut_parts(sizes))
            if full:
                self._held.append((rows.slice(last.start, last.stop), places[last]))
                self._held_bytes = int(sizes[last].sum())
                rows, places = rows.slice(0, last.start), places[: last.start]
        self._most_bytes = min(2 * self._most_bytes, PART_BYTES if self._by is None else _KEYED_BYTES)
        return rows, places

    def _release(self, rows: CheckedRows, places: Int64s) -> Iterator[RecordChunk]:
        """Yield the chunks queue by queue; within a queue in the order of the rows."""
        order = np.argsort(places, kind="stable")
        runs = np.split(order, np.flatnonzero(np.diff(places[order])) + 1)
        for run in runs:
            yield from self._chunks(rows.take(run) if len(runs) > 1 else rows, int(places[run[0]]))

    def _chunks(self, rows: CheckedRows, place: int) -> Iterator[RecordChunk]:
        number, waits = place // _WAIT_RANGE, place % _WAIT_RANGE - 1
        for which, _ in cut_parts(rows.record_sizes(self._topic)):
            step = which.stop - which.start if waits == NO_DELAY else _WAITING_ROWS
            for start in range(which.start, which.stop, step):
                yield self._chunk(rows.slice(start, min(start + step, which.stop)), number, delayed=waits != NO_DELAY)

    def _chunk(self, rows: CheckedRows, number: int, *, delayed: bool) -> RecordChunk:
        if number == NO_KEY:
            queue = self._round[self._turn % len(self._round)]
            self._turn += 1
        else:
            queue = self._sorted[number]
        records, sizes = rows.encode(queue.topic, queue.queue_id, unique_keys=self._unique_keys, born_host=_NO_HOST)
        return RecordChunk(queue, records, sizes, delayed)


def queues_for_keys(keys: pa.Array, count: int) -> Int64s:
    """Return the queue number of each row's key; NO_KEY for rows without a key.

    The number is an index, below `count`, into the sorted queues.

    Args:
        keys: text, or lists of text whose first value is used, in Arrow's small or large types. Null and "" are no key.
    """
    is_lists = pa.types.is_list(keys.type) or pa.types.is_large_list(keys.type)
    texts = cast_column(_first_of_each(keys) if is_lists else keys, pa.string()).fill_null("")
    starts, ends, data = spans(texts)
    hashes, foreign = java_hashes(data, starts, ends)
    signed = hashes.view(np.int32).astype(np.int64)
    for row in np.flatnonzero(foreign).tolist():
        signed[row] = java_hash(texts[row].as_py())
    found: Int64s = np.abs(signed) % count
    found[starts == ends] = NO_KEY
    return found


def _first_of_each(lists: pa.Array) -> pa.Array:
    """Return the first value of each list; null for an empty list."""
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)
    starts = np.cumsum(lengths) - lengths
    return lists.flatten().take(pa.array(starts, mask=lengths == 0))


@dataclass(frozen=True, slots=True)
class DeliveryTimes:
    """The delay of each row, and the property that encodes it ("" for none)."""

    waits: Int64s
    texts: pa.Array


def delivery_times(table: pa.Table, deliver_at: str | None, delay_level: str | None) -> DeliveryTimes:
    """Return the delays of the rows of `table` by these columns; null means no delay.

    Raises:
        InvalidInput: a time or a level is invalid, or a row has both.
    """
    waits = np.zeros(table.num_rows, np.int64)
    texts = pa.repeat("", table.num_rows)
    if delay_level is not None:
        levels = pc.fill_null(table.column(delay_level).combine_chunks().cast(pa.int64()), 0)
        waits = np.array(levels)
        if len(waits) and int(waits.min()) < 0:
            raise InvalidInput("delay_level", message_limits.DELAY_LEVEL, int(waits.min()))
        texts = _pairs(names.DELAY, levels, waits > 0)
    if deliver_at is not None:
        column = table.column(deliver_at).combine_chunks()
        named = ~np.asarray(column.is_null())
        if (both := named & (waits > 0)).any():
            raise InvalidInput("deliver_at", message_limits.DELIVER_AT, column[int(np.flatnonzero(both)[0])].as_py())
        waits[named] = TIMED
        texts = pc.if_else(pa.array(named), _pairs(names.TIMER_DELIVER_MS, pa.array(_due_ms(column)), named), texts)
    return DeliveryTimes(waits, texts)


def _pairs(name: str, numbers: pa.Array, wanted: npt.NDArray[np.bool_]) -> pa.Array:
    values = pc.if_else(pa.array(wanted), numbers.cast(pa.string()), pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise(name + "\x01", values, "\x02", "").fill_null("")


def _due_ms(column: pa.Array) -> Int64s:
    """Return each time in milliseconds, rounded up; 0 for null."""
    if pa.types.is_timestamp(column.type):
        micros = np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(0))
        due_ms: Int64s = -(-micros // _US_A_MS)
    else:
        seconds = np.asarray(column.cast(pa.float64()).fill_null(0.0))
        if not np.isfinite(seconds).all():
            raise InvalidInput("deliver_at", TIME, float(seconds[~np.isfinite(seconds)][0]))
        due_ms = np.ceil(np.clip(seconds, -1.0, _MAX_MS) * 1_000).clip(-1, _MAX_MS).astype(np.int64)
    if len(due_ms):
        for worst in (int(due_ms.argmin()), int(due_ms.argmax())):
            checked_due_time("deliver_at", due_ms[worst] / 1_000)
    return due_ms
