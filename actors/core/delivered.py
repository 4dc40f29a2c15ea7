"""Finding the copies that were delivered from where they waited: what a start after a crash needs to know.

A copy names its entry in a property, which any sender of ready-made records can write. Looking for it in every append
would cost as much as the append; so nothing is believed here that the entry itself does not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raymq.actors.core.marked_records import marked_records
from raymq.actors.naming import SCHEDULE_TOPIC, TIMER_TOPIC
from raymq.storage import properties as names
from raymq.storage.errors import NotFoundError, OffsetOutOfRange, StoreCorrupt
from raymq.storage.record import Record
from raymq.storage.store import Store

_ORIGIN = re.compile(r"([0-9]{1,4}):([0-9]{1,18})")


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
    for record in marked_records(store, names.DELIVERED_FROM, log_end, not_in=(SCHEDULE_TOPIC, TIMER_TOPIC)):
        origin = origin_of(record.properties)
        if origin is not None and _is_copy(record, _entry(store, origin)):
            yield origin, record


def _entry(store: Store, origin: Origin) -> Record | None:
    """What waits, or waited, there; None: nothing that could be delivered again."""
    topic, queue_id = (SCHEDULE_TOPIC, origin.level - 1) if origin.level else (TIMER_TOPIC, 0)
    try:
        with store.read(topic, queue_id, origin.offset, 1) as lease:
            return lease.messages()[0]
    except (NotFoundError, OffsetOutOfRange, StoreCorrupt, IndexError):
        return None


def _is_copy(record: Record, entry: Record | None) -> bool:
    """Whether `record` is the message of `entry` in its real queue."""
    if entry is None:
        return False
    told = entry.properties
    place = told.get(names.REAL_TOPIC), told.get(names.REAL_QID, "0")
    return place == (record.topic, str(record.queue_id)) and entry.unique_key == record.unique_key
