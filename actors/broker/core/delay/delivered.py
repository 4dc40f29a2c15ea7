"""Finding the copies that were delivered from where they waited: what a start after a crash needs to know.

A copy names its entry in a property, which any sender of ready-made records can write. Looking for it in every append
would cost as much as the append; so nothing is believed here that the entry itself does not say. What it says of itself
only its own sender knows, for it is not delivered yet; and a copy speaks for its entry alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.marked_records import MarkedPart, marked_parts, parts_of_topic
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import NotFoundError, OffsetOutOfRange, StoreCorrupt
from raymq.storage.records import batch as record_batch
from raymq.storage.records import property_names as names
from raymq.storage.records import record as layout
from raymq.storage.records.property_columns import PropertyColumns, properties_of_batch
from raymq.storage.records.record import Record
from raymq.storage.store import Store

#: flag, born time in ms, CRC-32 of the body, its length
Message = tuple[int, int, int, int]

_ORIGIN = re.compile(r"([0-9]{1,4}):([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copy waited: the delay level (0: the timer queue), and the offset in that level's queue."""

    level: int
    offset: int


@dataclass(frozen=True, slots=True)
class Sense:
    """What a waiting message and its copy have in common.

    Not the queue: if the topic has fewer by now, the copy came to another one.

    Attributes:
        topic: the real one.
        due_ms: the time that it waits for, if it has one.
        message: its flag, born time, and the CRC and length of its body. Of the body nothing else: it may be damaged.
    """

    topic: str
    unique_key: str | None
    due_ms: str | None
    message: Message


@dataclass(frozen=True, slots=True)
class Copy:
    """A message that was delivered, and where it had waited."""

    origin: Origin
    sense: Sense
    physical_offset: int
    size: int


def origin_of(told: Mapping[str, str]) -> Origin | None:
    """Where a record with these properties waited; None: nowhere."""
    return _read_origin(told.get(names.DELIVERED_FROM, ""))


def delivered_since(store: Store, log_end: int) -> Iterator[Copy]:
    """The delivered copies at or behind `log_end` of the log, queue by queue; damaged records are passed over."""
    for part in marked_parts(store, names.DELIVERED_FROM, log_end, not_in=(SCHEDULE_TOPIC, TIMER_TOPIC)):
        copies = list(_claimed(part))
        entries = {
            level: _entries(store, level, {copy.origin.offset for copy in copies if copy.origin.level == level})
            for level in {copy.origin.level for copy in copies}
        }
        for copy in copies:
            entry = entries[copy.origin.level].get(copy.origin.offset) or _entry(store, copy.origin)
            if copy.sense == entry:
                yield copy


def moved_since(store: Store, log_end: int) -> Iterator[Copy]:
    """The copies at or behind `log_end` by which messages of a delay level came into the timer queue."""
    for part in parts_of_topic(store, TIMER_TOPIC, names.DELIVERED_FROM, log_end):
        senses = list(_senses(part.batch, part.columns))
        texts = part.columns.last(names.DELIVERED_FROM).to_pylist()
        for number in part.marked.tolist():
            origin, sense = _read_origin(texts[number]), senses[number]
            entry = None if origin is None or not origin.level else _entry(store, origin)
            # The time is the copy's own: what waits a level names none.
            if origin is not None and entry is not None and replace(entry, due_ms=sense.due_ms) == sense:
                place, size = int(part.batch.physical_offsets[number]), int(part.batch.sizes[number])
                yield Copy(origin, sense, place, size)


def dequeued_since(store: Store, log_end: int) -> Iterator[tuple[Sense, int, int]]:
    """What RocketMQ's broker took out of its timer wheel at or behind `log_end` of the log: it does not say from where.

    It was delivered, or stored anew to wait on. Of each what it says of itself, its place and its size.
    """
    for part in marked_parts(store, names.TIMER_DEQUEUE_MS, log_end, not_in=(SCHEDULE_TOPIC,)):
        told = [Sense(part.topic, *each) for each in _keyed(part)]
        if part.topic == TIMER_TOPIC:
            senses = list(_senses(part.batch, part.columns))
            told = [senses[number] for number in part.marked.tolist()]
        places, sizes = part.batch.physical_offsets[part.marked].tolist(), part.batch.sizes[part.marked].tolist()
        yield from zip(told, places, sizes, strict=True)


def waiting_sense(store: Store, offset: int) -> Sense | None:
    """What the message at an offset of the timer queue says of itself; None if it cannot be read."""
    return _entry(store, Origin(0, offset))


def _level_queue(level: int) -> tuple[str, int]:
    return (SCHEDULE_TOPIC, level - 1) if level else (TIMER_TOPIC, 0)


def _read_origin(text: str) -> Origin | None:
    found = _ORIGIN.fullmatch(text)
    return None if found is None else Origin(int(found[1]), int(found[2]))


def _claimed(part: MarkedPart) -> Iterator[Copy]:
    """What the marked records of a part say they are."""
    marked = part.marked
    texts = part.columns.last(names.DELIVERED_FROM).take(marked).to_pylist()
    places, sizes = part.batch.physical_offsets[marked].tolist(), part.batch.sizes[marked].tolist()
    for text, place, size, told in zip(texts, places, sizes, _keyed(part), strict=True):
        origin = _read_origin(text)
        if origin is not None:
            yield Copy(origin, Sense(part.topic, *told), place, size)


def _keyed(part: MarkedPart) -> Iterator[tuple[str | None, str | None, Message]]:
    """Unique key, due time and message of the marked records of a part."""
    told = (part.columns.last(name).take(part.marked).to_pylist() for name in (names.UNIQ_KEY, names.TIMER_OUT_MS))
    return zip(*told, _messages(part.batch, part.batch.starts[part.marked]), strict=True)


def _entries(store: Store, level: int, offsets: Collection[int]) -> dict[int, Sense]:
    """What waits, or waited, at offsets of a level's queue; nothing where not all of them can be read together."""
    found: dict[int, tuple[int, int]] = {}
    for offset in offsets:
        try:
            [place], [size], _ = store.entries(*_level_queue(level), offset, 1)
        except (NotFoundError, OffsetOutOfRange, ValueError):  # ValueError: it is the queue's end
            continue
        if store.min_physical_offset <= place and size > 0 and place + size <= store.max_physical_offset:
            found[offset] = int(place), int(size)
    if not found:
        return {}
    places, sizes = zip(*found.values(), strict=True)
    try:
        batch = record_batch.parse(store.raw_many(places, sizes), np.array(sizes, np.int32))
    except record_batch.BadRecord:
        return {}
    if {group.topic for group in batch.groups} != {_level_queue(level)[0]}:
        return {}
    return dict(zip(batch.queue_offsets.tolist(), _senses(batch, properties_of_batch(batch)), strict=True))


def _entry(store: Store, origin: Origin) -> Sense | None:
    """What waits, or waited, there; None: nothing that could be delivered again."""
    try:
        with store.read(*_level_queue(origin.level), origin.offset, 1) as lease:
            batch = record_batch.parse(lease.records, lease.sizes)
            return next(_senses(batch, properties_of_batch(batch)))
    except (NotFoundError, OffsetOutOfRange, StoreCorrupt, record_batch.BadRecord):
        return None


def _senses(batch: record_batch.Batch, waiting: PropertyColumns) -> Iterator[Sense]:
    """What waiting messages say of themselves."""
    told = (waiting.last(name).to_pylist() for name in (names.REAL_TOPIC, names.UNIQ_KEY, names.TIMER_OUT_MS))
    yield from map(Sense, *told, _messages(batch, batch.starts))


def _messages(batch: record_batch.Batch, starts: npt.NDArray[np.int64]) -> list[Message]:
    """What records of the batch are, by where they begin."""
    ints, longs = record_batch.strided(batch.records, ">i4"), record_batch.strided(batch.records, ">i8")
    late = (ints[starts + layout.OFFSET_SYS_FLAG] & layout.SYS_FLAG_BORN_IPV6 != 0) * layout.IPV6_SHIFT
    fields = (
        ints[starts + layout.OFFSET_FLAG],
        longs[starts + layout.OFFSET_BORN_TIMESTAMP],
        ints[starts + layout.OFFSET_BODY_CRC],
        ints[starts + layout.OFFSET_BODY_LENGTH + late],
    )
    return list(zip(*(field.tolist() for field in fields), strict=True))


def message_of(record: Record) -> tuple[int, int, bytes]:
    """What a stored message and a copy of it have in common, whatever their properties say."""
    return record.flag, record.born_timestamp_ms, record.body
