"""Find copies that delivered waiting messages, after crashes and on replicas.

A copy names the entry that it was made from in a property, which any client that appends encoded records can forge.
Checking each append for that would cost as much as the append. So a copy counts only if it matches the waiting message
itself. Only the sender of a waiting message knows its content, because it is not delivered yet; and a copy proves the
delivery of its own entry only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.property_scan import LogMatches, scan_topic, search_log
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import NotFoundError, OffsetOutOfRange, StoreCorrupt
from raymq.storage.records import property_names as names
from raymq.storage.records import record as layout
from raymq.storage.records import record_batch
from raymq.storage.records.property_columns import PropertyColumns, properties_of_batch
from raymq.storage.records.record import Record
from raymq.storage.store import Store

#: flag, born time in ms, CRC-32 of the body, its length
ContentKey = tuple[int, int, int, int]

_ORIGIN = re.compile(r"([0-9]{1,4}):([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class DelayOrigin:
    """Where a copy waited: the delay level and the offset in that level's queue.

    Level 0 stands for the timer queue.
    """

    level: int
    offset: int


@dataclass(frozen=True, slots=True)
class MessageFingerprint:
    """The fields that a waiting message and its copy have in common.

    The queue is not one of them: if the topic has fewer queues by now, the copy went to another one.

    Attributes:
        topic: the real topic.
        due_ms: the delivery time, if the message has one.
        message: flag, born time, and the CRC and length of the body. The body itself is not read, as it may be damaged.
    """

    topic: str
    unique_key: str | None
    due_ms: str | None
    message: ContentKey


@dataclass(frozen=True, slots=True)
class DeliveredCopy:
    """The copy of a delivered message, and where it had waited."""

    origin: DelayOrigin
    sense: MessageFingerprint
    physical_offset: int
    size: int


def parse_origin(properties: Mapping[str, str]) -> DelayOrigin | None:
    """Return where a record with these properties waited, or None if it did not."""
    return _read_origin(properties.get(names.DELIVERED_FROM, ""))


def find_delivered_copies(store: Store, log_end: int) -> Iterator[DeliveredCopy]:
    """Yield the delivered copies at or after `log_end` of the log. Damaged records are skipped."""
    while log_end < store.max_physical_offset:
        found, log_end = next_delivered_copies(store, log_end)
        yield from found


def next_delivered_copies(store: Store, begin: int) -> tuple[list[DeliveredCopy], int]:
    """Return the delivered copies in one part of the log, and its end.

    One call takes some milliseconds; see `search_log`.
    """

    def convert(part: LogMatches) -> list[DeliveredCopy]:
        copies = list(_claimed(part))
        entries = {
            level: _entries(store, level, {copy.origin.offset for copy in copies if copy.origin.level == level})
            for level in {copy.origin.level for copy in copies}
        }
        found = ((copy, entries[copy.origin.level].get(copy.origin.offset)) for copy in copies)
        return [copy for copy, entry in found if copy.sense == (entry or _entry(store, copy.origin))]

    return search_log(store, names.DELIVERED_FROM, begin, convert)


def find_moved_copies(store: Store, log_end: int) -> Iterator[DeliveredCopy]:
    """Yield the copies that moved delay-level messages to the timer queue.

    Only copies at or after `log_end` of the log are searched.
    """
    for part in scan_topic(store, TIMER_TOPIC, names.DELIVERED_FROM, log_end):
        senses = list(_senses(part.batch, part.columns))
        texts = part.columns.last(names.DELIVERED_FROM).to_pylist()
        for number in part.marked.tolist():
            origin, sense = _read_origin(texts[number]), senses[number]
            entry = None if origin is None or not origin.level else _entry(store, origin)
            # Only the copy has a due time: a message of a delay level has none.
            if origin is not None and entry is not None and replace(entry, due_ms=sense.due_ms) == sense:
                place, size = int(part.batch.physical_offsets[number]), int(part.batch.sizes[number])
                yield DeliveredCopy(origin, sense, place, size)


def find_dequeued(store: Store, log_end: int) -> Iterator[tuple[MessageFingerprint, int, int]]:
    """Yield the messages that a RocketMQ broker took out of its timer wheel.

    Only records at or after `log_end` of the log are searched. Such a record does not name its origin; the message was
    delivered, or stored again to wait on. Each item is its fingerprint, its physical offset and its size.
    """
    while log_end < store.max_physical_offset:
        found, log_end = search_log(store, names.TIMER_DEQUEUE_MS, log_end, _dequeued)
        yield from found


def _dequeued(part: LogMatches) -> list[tuple[MessageFingerprint, int, int]]:
    places, sizes = part.batch.physical_offsets.tolist(), part.batch.sizes.tolist()
    waiting, copies = _senses(part.batch, part.columns), _copied(part)
    return [
        (sense if topic == TIMER_TOPIC else copy, place, size)
        for topic, sense, copy, place, size in zip(part.topics, waiting, copies, places, sizes, strict=True)
        if topic != SCHEDULE_TOPIC
    ]


def waiting_fingerprint(store: Store, offset: int) -> MessageFingerprint | None:
    """Return the fingerprint of a message of the timer queue, or None if unreadable."""
    return _entry(store, DelayOrigin(0, offset))


def _level_queue(level: int) -> tuple[str, int]:
    return (SCHEDULE_TOPIC, level - 1) if level else (TIMER_TOPIC, 0)


def _read_origin(text: str) -> DelayOrigin | None:
    found = _ORIGIN.fullmatch(text)
    return None if found is None else DelayOrigin(int(found[1]), int(found[2]))


def _claimed(part: LogMatches) -> Iterator[DeliveredCopy]:
    """Yield the copies that records claim to be; not those that wait themselves."""
    texts = part.columns.last(names.DELIVERED_FROM).to_pylist()
    places, sizes = part.batch.physical_offsets.tolist(), part.batch.sizes.tolist()
    for text, place, size, sense in zip(texts, places, sizes, _copied(part), strict=True):
        origin = _read_origin(text)
        if origin is not None and sense.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            yield DeliveredCopy(origin, sense, place, size)


def _copied(part: LogMatches) -> Iterator[MessageFingerprint]:
    """Yield the fingerprints of messages in their real topics."""
    columns = part.columns.first(names.UNIQ_KEY).to_pylist(), part.columns.last(names.TIMER_OUT_MS).to_pylist()
    yield from map(MessageFingerprint, part.topics, *columns, _messages(part.batch, part.batch.starts))


def _entries(store: Store, level: int, offsets: Collection[int]) -> dict[int, MessageFingerprint]:
    """Return the fingerprints of messages at these offsets of a level's queue.

    The result is empty if they cannot all be read together.
    """
    found: dict[int, tuple[int, int]] = {}
    for offset in offsets:
        try:
            [place], [size], _ = store.entries(*_level_queue(level), offset, 1, written=True)
        except (NotFoundError, OffsetOutOfRange, ValueError):  # ValueError: the offset is the queue's end
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


def _entry(store: Store, origin: DelayOrigin) -> MessageFingerprint | None:
    """Return the fingerprint of the message at `origin`, or None if it cannot be read.

    A message that cannot be read cannot be delivered again.
    """
    try:
        with store.read(*_level_queue(origin.level), origin.offset, 1, written=True) as lease:
            batch = record_batch.parse(lease.records, lease.sizes)
            return next(_senses(batch, properties_of_batch(batch)))
    except (NotFoundError, OffsetOutOfRange, StoreCorrupt, record_batch.BadRecord):
        return None


def _senses(batch: record_batch.Batch, waiting: PropertyColumns) -> Iterator[MessageFingerprint]:
    """Yield the fingerprints of waiting messages."""
    columns = waiting.last(names.REAL_TOPIC), waiting.first(names.UNIQ_KEY), waiting.last(names.TIMER_OUT_MS)
    yield from map(MessageFingerprint, *(each.to_pylist() for each in columns), _messages(batch, batch.starts))


def _messages(batch: record_batch.Batch, starts: npt.NDArray[np.int64]) -> list[ContentKey]:
    """Return the content keys of the records that begin at `starts`."""
    ints, longs = record_batch.strided(batch.records, ">i4"), record_batch.strided(batch.records, ">i8")
    late = (ints[starts + layout.OFFSET_SYS_FLAG] & layout.SYS_FLAG_BORN_IPV6 != 0) * layout.IPV6_SHIFT
    fields = (
        ints[starts + layout.OFFSET_FLAG],
        longs[starts + layout.OFFSET_BORN_TIMESTAMP],
        ints[starts + layout.OFFSET_BODY_CRC],
        ints[starts + layout.OFFSET_BODY_LENGTH + late],
    )
    return list(zip(*(field.tolist() for field in fields), strict=True))


def message_content(record: Record) -> tuple[int, int, bytes]:
    """Return the fields that a message and its copy share, whatever their properties are."""
    return record.flag, record.born_timestamp_ms, record.body
