"""Finding the copies that were delivered from where they waited: what a start after a crash needs to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raymq.actors.naming import SCHEDULE_TOPIC, TIMER_TOPIC
from raymq.storage import properties as names
from raymq.storage.consume_queue import FILLER_SIZE
from raymq.storage.errors import StoreCorrupt
from raymq.storage.property_columns import properties_of_records
from raymq.storage.record import Record, decode
from raymq.storage.store import Store

_ORIGIN = re.compile(r"([0-9]{1,4}):([0-9]{1,18})")
_ENTRIES = 4_096
_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copy waited: the delay level (0: the timer queue), and the offset in that level's queue."""

    level: int
    offset: int


def origin_of(told: Mapping[str, str]) -> Origin | None:
    """Where a record with these properties waited; None: nowhere."""
    found = _ORIGIN.fullmatch(told.get(names.DELIVERED_FROM, ""))
    return None if found is None else Origin(int(found[1]), int(found[2]))


def delivered_since(store: Store, log_end: int) -> Iterator[tuple[Origin, Record]]:
    """The delivered copies at or behind `log_end` of the log, queue by queue; damaged records are passed over."""
    for topic in store.topics():
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            continue
        for queue_id in store.queues(topic):
            yield from _in_queue(store, topic, queue_id, log_end)


def _in_queue(store: Store, topic: str, queue_id: int, log_end: int) -> Iterator[tuple[Origin, Record]]:
    offset = _first_since(store, topic, queue_id, log_end)
    while offset < store.max_offset(topic, queue_id):
        try:
            with store.read(topic, queue_id, offset, _ENTRIES, _BYTES) as lease:
                column = properties_of_records(lease.records, lease.sizes).last(names.DELIVERED_FROM)
                starts = np.cumsum(lease.sizes, dtype=np.int64) - lease.sizes
                for start in starts[column.is_valid().to_numpy(zero_copy_only=False)].tolist():
                    record = decode(lease.records, start, check_crc=False)
                    origin = origin_of(record.properties)
                    if origin is not None:
                        yield origin, record
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
