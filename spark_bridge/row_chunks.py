"""The rows of a write's task as chunks of records of one queue each: as few as may be, none larger than brokers take.

Spark hands rows over in small batches; a request and a file for each of them would cost more than its rows. So they are
gathered until a chunk is full, however many rows a partition has: no more than that is held.
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
from raymq.client.produce.encoding import cut_parts, rows_of_a_part
from raymq.spark_bridge.deliveries import AT_ONCE, deliveries
from raymq.spark_bridge.key_queues import ANYWHERE, queues_of_keys
from raymq.storage.records.table import Rows, checked_rows
from raymq.storage.records.unique_keys import UniqueKeys

Int64s = npt.NDArray[np.int64]

#: What a row's message says of its sender's address.
_NO_HOST: Final = ("127.0.0.1", 0)
#: The first chunk of rows without keys is this large and each one twice the one before it, up to a part: so small
#: partitions use several queues, too, and large ones few requests.
_FIRST_BYTES: Final = PART_BYTES // 16
#: Rows with keys are gathered for all queues at the same time.
_KEYED_BYTES: Final = 2 * PART_BYTES
#: What rows wait for are numbers below this one: of higher delay levels than any broker has none differs from another.
_PLACES: Final = 1 << 31
#: Rows of a chunk that waits: a broker writes each of them anew.
_WAITING_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one queue. `delayed`: all of them wait for a time, or all for the same delay level."""

    queue: MessageQueue
    records: bytearray
    sizes: npt.NDArray[np.int32]
    delayed: bool


class RowChunks:
    """Makes chunks of one partition's rows. One thread."""

    def __init__(self, queues: Sequence[MessageQueue], first: int, columns: Sequence[str]) -> None:
        """`columns` are those of the rows, see `write_columns`.

        Args:
            queues: those of the topic that may be written.
            first: where rows without keys begin: at one of the queues, by this number, from which they go round.
        """
        self._topic = queues[0].topic
        self._sorted = sorted(queues)
        #: Neighbours are of different brokers.
        self._round = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker))
        self._turn = first
        self._columns = frozenset(columns)
        self._by = next((name for name in ("sharding_key", "keys") if name in self._columns), None)
        self._waits = bool(self._columns & {"deliver_at", "delay_level"})
        self._unique_keys = UniqueKeys()
        #: Rows, and of each row in one number the one of its queue and what it waits for.
        self._held: list[tuple[Rows, Int64s]] = []
        self._held_bytes = 0
        self._most_bytes = _FIRST_BYTES if self._by is None else _KEYED_BYTES

    def add(self, table: pa.Table) -> Iterator[Chunk]:
        """The chunks that are full with the rows of `table`.

        They are cut by the sizes of their records: how large a row is in Arrow says little, since a struct is packed
        and several keys become one text. That would need the whole table a second time in memory, so it goes by steps.

        Raises:
            InvalidInput: a row breaks a rule of messages.
        """
        # Not `nbytes`: Java's Arrow leaves out the offsets of lists in lists that have no values, which that reads.
        step = rows_of_a_part(table.num_rows, table.get_total_buffer_size(), self._topic)
        for start in range(0, table.num_rows, step):
            self._hold(table.slice(start, step))
            if self._held_bytes >= self._most_bytes:
                yield from self._release(*self._full())

    def rest(self) -> Iterator[Chunk]:
        """The chunks of what is held yet."""
        if self._held:
            yield from self._release(*self._taken())

    def _hold(self, table: pa.Table) -> None:
        keys, tags, properties = (name if name in self._columns else None for name in ("keys", "tags", "properties"))
        rows = checked_rows(table, body="body", keys=keys, tags=tags, properties=properties)
        count = table.num_rows
        waits = np.zeros(count, np.int64)
        if self._waits:
            times = (name if name in self._columns else None for name in ("deliver_at", "delay_level"))
            found = deliveries(table, *times)
            rows, waits = rows.with_texts(found.texts), found.waits
        numbers = np.full(count, ANYWHERE, np.int64)
        if self._by is not None:
            numbers = queues_of_keys(table.column(self._by).combine_chunks(), len(self._sorted))
        self._held.append((rows, numbers * _PLACES + np.minimum(waits, _PLACES - 2) + 1))
        self._held_bytes += int(rows.record_sizes(self._topic).sum())

    def _taken(self) -> tuple[Rows, Int64s]:
        """All that is held, which it is no longer."""
        parts, self._held, self._held_bytes = self._held, [], 0
        return Rows.concatenated([rows for rows, _ in parts]), np.concatenate([places for _, places in parts])

    def _full(self) -> tuple[Rows, Int64s]:
        """What is held, but for what would be a chunk that is not full."""
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

    def _release(self, rows: Rows, places: Int64s) -> Iterator[Chunk]:
        """First what goes to one queue, then to the next one; of one queue in the rows' order."""
        order = np.argsort(places, kind="stable")
        runs = np.split(order, np.flatnonzero(np.diff(places[order])) + 1)
        for run in runs:
            yield from self._chunks(rows.take(run) if len(runs) > 1 else rows, int(places[run[0]]))

    def _chunks(self, rows: Rows, place: int) -> Iterator[Chunk]:
        number, waits = place // _PLACES, place % _PLACES - 1
        for which, _ in cut_parts(rows.record_sizes(self._topic)):
            step = which.stop - which.start if waits == AT_ONCE else _WAITING_ROWS
            for start in range(which.start, which.stop, step):
                yield self._chunk(rows.slice(start, min(start + step, which.stop)), number, delayed=waits != AT_ONCE)

    def _chunk(self, rows: Rows, number: int, *, delayed: bool) -> Chunk:
        if number == ANYWHERE:
            queue = self._round[self._turn % len(self._round)]
            self._turn += 1
        else:
            queue = self._sorted[number]
        records, sizes = rows.encode(queue.topic, queue.queue_id, unique_keys=self._unique_keys, born_host=_NO_HOST)
        return Chunk(queue, records, sizes, delayed)
