"""Build chunks of records, each for one queue, from the rows of a write task.

There are as few chunks as possible, and none is larger than the brokers accept. Spark passes rows in small batches; a
request and a file for each batch would cost more than its rows. So rows are gathered until a chunk is full. No more
rows than that are held, however many rows a partition has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.actors.request_limits import PART_BYTES
from raymq.client import MessageQueue
from raymq.client.produce.message_encoder import cut_parts, rows_per_part
from raymq.spark_bridge.delivery_columns import NO_DELAY, delivery_times
from raymq.spark_bridge.key_partitioner import NO_KEY, queues_for_keys
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

    def __init__(self, queues: Sequence[MessageQueue], first: int, columns: Sequence[str]) -> None:
        """Create a builder; `columns` are the columns of the rows, see `write_columns`.

        Args:
            queues: the topic's writable queues.
            first: the number of the queue for the first chunk of rows without keys; the next chunks use the queues in
                turn.
        """
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

    def _hold(self, table: pa.Table) -> None:
        keys, tags, properties = (name if name in self._columns else None for name in ("keys", "tags", "properties"))
        rows = checked_rows(table, body="body", keys=keys, tags=tags, properties=properties)
        count = table.num_rows
        waits = np.zeros(count, np.int64)
        if self._waits:
            times = (name if name in self._columns else None for name in ("deliver_at", "delay_level"))
            found = delivery_times(table, *times)
            rows, waits = rows.with_properties(found.texts), found.waits
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
