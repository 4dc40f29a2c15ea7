"""Finding the copies that were delivered from where they waited: what a start after a crash needs to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raymq.actors.core.marked_records import marked_records
from raymq.actors.naming import SCHEDULE_TOPIC, TIMER_TOPIC
from raymq.storage import properties as names
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
        if origin is not None:
            yield origin, record
