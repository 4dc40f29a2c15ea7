"""Finding the records that carry a property, behind a place of the log: what a start has to know again.

Queue by queue and in batches, as columns; damaged records are passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from raymq.storage.consume_queue import FILLER_SIZE
from raymq.storage.errors import StoreCorrupt
from raymq.storage.property_columns import properties_of_records
from raymq.storage.record import Record, decode
from raymq.storage.store import Store

_ENTRIES = 4_096
_BYTES = 8 << 20


def marked_records(store: Store, name: str, log_end: int, *, not_in: Collection[str] = ()) -> Iterator[Record]:
    """The records with the property `name` at or behind `log_end` of the log, of all topics but `not_in`."""
    for topic in store.topics():
        if topic not in not_in:
            for queue_id in store.queues(topic):
                yield from _in_queue(store, topic, queue_id, name, log_end)


def _in_queue(store: Store, topic: str, queue_id: int, name: str, log_end: int) -> Iterator[Record]:
    offset = _first_since(store, topic, queue_id, log_end)
    while offset < store.max_offset(topic, queue_id):
        try:
            with store.read(topic, queue_id, offset, _ENTRIES, _BYTES) as lease:
                column = properties_of_records(lease.records, lease.sizes).last(name)
                starts = np.cumsum(lease.sizes, dtype=np.int64) - lease.sizes
                for start in starts[column.is_valid().to_numpy(zero_copy_only=False)].tolist():
                    yield decode(lease.records, start, check_crc=False)
                offset = lease.next_offset
        except StoreCorrupt:
            offset += 1


def _first_since(store: Store, topic: str, queue_id: int, log_end: int) -> int:
    """The offset behind the last message that lies before `log_end`; a crash leaves few behind it."""
    low, at = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    while at > low:
        begin = max(low, at - _ENTRIES)
        places, sizes, _ = store.entries(topic, queue_id, begin, at - begin)
        older = np.flatnonzero((places < log_end) & (sizes != FILLER_SIZE))
        if len(older):
            return begin + int(older[-1]) + 1
        at = begin
    return low
