"""Finding the records that carry a property, behind a place of the log: what a start has to know again.

Queue by queue and in batches, as columns; damaged records are passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.copying import reason_of
from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.consume_queue import FILLER_SIZE
from raymq.storage.records import batch as record_batch
from raymq.storage.records.property_columns import PropertyColumns, properties_of_batch
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store

_ENTRIES = 4_096
_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class MarkedPart:
    """Some records of one queue, to be used before the next part is asked for.

    Attributes:
        columns: the properties of all of them.
        marked: which of them carry the property.
    """

    topic: str
    queue_id: int
    batch: record_batch.Batch
    columns: PropertyColumns
    marked: npt.NDArray[np.int64]


def marked_records(store: Store, name: str, log_end: int) -> Iterator[Record]:
    """The records with the property `name` at or behind `log_end` of the log."""
    for part in marked_parts(store, name, log_end):
        for start in part.batch.starts[part.marked].tolist():
            yield decode(part.batch.records, start, check_crc=False)


def marked_parts(store: Store, name: str, log_end: int, *, not_in: Collection[str] = ()) -> Iterator[MarkedPart]:
    """The parts of all topics but `not_in` that have records with the property `name`, from `log_end` of the log on."""
    for topic in store.topics():
        if topic not in not_in:
            yield from parts_of_topic(store, topic, name, log_end)


def parts_of_topic(store: Store, topic: str, name: str, log_end: int) -> Iterator[MarkedPart]:
    """The same of one topic."""
    for queue_id in store.queues(topic):
        yield from _in_queue(store, topic, queue_id, name, log_end)


def _in_queue(store: Store, topic: str, queue_id: int, name: str, log_end: int) -> Iterator[MarkedPart]:
    offset, count = _first_since(store, topic, queue_id, log_end), _ENTRIES
    while offset < store.max_offset(topic, queue_id, written=True):
        try:
            with store.read(topic, queue_id, offset, count, _BYTES, written=True) as lease:
                batch = record_batch.parse(lease.records, lease.sizes, check_crc=False)
                columns = properties_of_batch(batch)
                marked = np.flatnonzero(columns.last(name).is_valid().to_numpy(zero_copy_only=False))
                if len(marked):
                    yield MarkedPart(topic, queue_id, batch, columns, marked)
                offset, count = lease.next_offset, _ENTRIES
        except Exception as error:  # noqa: BLE001 - nothing that is stored keeps a broker from starting
            reason_of(error)
            if count > 1 and not isinstance(error, StoreCorrupt):
                count //= 2
            else:
                offset, count = offset + 1, _ENTRIES


def _first_since(store: Store, topic: str, queue_id: int, log_end: int) -> int:
    """The offset behind the last message that lies before `log_end`; a crash leaves few behind it."""
    low, at = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id, written=True)
    while at > low:
        begin = max(low, at - _ENTRIES)
        places, sizes, _ = store.entries(topic, queue_id, begin, at - begin, written=True)
        older = np.flatnonzero((places < log_end) & (sizes != FILLER_SIZE))
        if len(older):
            return begin + int(older[-1]) + 1
        at = begin
    return low
