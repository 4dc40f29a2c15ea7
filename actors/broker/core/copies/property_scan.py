"""Find records by property or flag, from a log offset on.

They are read queue by queue and in batches, as columns; or, if few records have a property, the log is searched for the
name's bytes, and only the records that contain them are parsed. Damaged records are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.consume_queue import FILLER_SIZE
from raymq.storage.records import record as layout
from raymq.storage.records import record_batch
from raymq.storage.records.property_columns import PropertyColumns, properties_of_batch
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store

T = TypeVar("T")

_ENTRIES = 4_096
_BYTES = 8 << 20
#: How many found records one step of a search of the log parses.
_MOST_FOUND: Final = 512


@dataclass(frozen=True, slots=True)
class PropertyMatches:
    """Some records of one queue, valid until the next part is requested.

    Attributes:
        columns: the properties of all of them.
        marked: the indices of those that match.
    """

    topic: str
    queue_id: int
    batch: record_batch.Batch
    columns: PropertyColumns
    marked: npt.NDArray[np.int64]


def committed_records(store: Store, log_end: int) -> Iterator[Record]:
    """Yield the commits of transactions at or after `log_end` of the log."""
    for topic in store.topics():
        for queue_id in store.queues(topic):
            for part in _in_queue(store, topic, queue_id, _is_commit, log_end):
                for start in part.batch.starts[part.marked].tolist():
                    yield decode(part.batch.records, start, check_crc=False)


def _is_commit(batch: record_batch.Batch, _: PropertyColumns) -> npt.NDArray[np.bool_]:
    flags = batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK
    marks: npt.NDArray[np.bool_] = flags == layout.SYS_FLAG_TRANSACTION_COMMIT
    return marks


def records_of_topic(store: Store, topic: str, log_end: int) -> Iterator[Record]:
    """Yield the records of a topic at or after `log_end` of the log."""

    def every(batch: record_batch.Batch, _: PropertyColumns) -> npt.NDArray[np.bool_]:
        return np.ones(len(batch.sizes), np.bool_)

    for queue_id in store.queues(topic):
        for part in _in_queue(store, topic, queue_id, every, log_end):
            for start in part.batch.starts.tolist():
                yield decode(part.batch.records, start, check_crc=False)


def records_with_property(store: Store, name: str, log_end: int) -> Iterator[Record]:
    """Yield the records with the property `name` at or after `log_end` of the log."""
    for topic in store.topics():
        for part in scan_topic(store, topic, name, log_end):
            for start in part.batch.starts[part.marked].tolist():
                yield decode(part.batch.records, start, check_crc=False)


@dataclass(frozen=True, slots=True)
class LogMatches:
    """Records of any queues that have a property.

    Attributes:
        topics: the topic of each record.
        columns: the properties of each record.
    """

    topics: list[str]
    batch: record_batch.Batch
    columns: PropertyColumns


def search_log(store: Store, name: str, begin: int, convert: Callable[[LogMatches], list[T]]) -> tuple[list[T], int]:
    """Search one part of the log; return what was found and its end.

    All written records count, also those of deleted topics. A step takes some milliseconds, plus `convert` for some
    hundred records.

    Args:
        begin: where a record begins; the log's minimum counts if it is higher.
        convert: makes the results from records with the property `name`. Records for which it fails are skipped, as
            damaged ones are.
    """
    found = store.find_records(f"{name}\x01".encode(), begin, _MOST_FOUND)
    if not len(found.sizes):
        return [], found.following
    return list(_converted(memoryview(found.records), found.sizes, name, convert)), found.following


def _converted(
    records: memoryview, sizes: npt.NDArray[np.int32], name: str, convert: Callable[[LogMatches], list[T]]
) -> Iterator[T]:
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    try:
        batch = record_batch.parse(records, sizes, check_crc=False)
        columns = properties_of_batch(batch)
        has_property = columns.last(name).is_valid().to_numpy(zero_copy_only=False)
        if has_property.all():
            yield from convert(LogMatches(_topics(batch), batch, columns))
            return
        parts = [np.flatnonzero(has_property)]  # the others have the bytes elsewhere, such as in the body
    except Exception as error:  # noqa: BLE001 - an error of a stored record concerns that record only
        rejection_reason(error)
        if len(sizes) == 1:
            return
        parts = np.array_split(np.arange(len(sizes)), 2)
    for part in parts:
        if len(part):
            pieces = zip(starts[part].tolist(), sizes[part].tolist(), strict=True)
            joined = b"".join(records[start : start + size] for start, size in pieces)
            yield from _converted(memoryview(joined), sizes[part], name, convert)


def _topics(batch: record_batch.Batch) -> list[str]:
    topics = [""] * len(batch)
    for group in batch.groups:
        for number in range(len(batch)) if group.members is None else group.members.tolist():
            topics[number] = group.topic
    return topics


def scan_topic(store: Store, topic: str, name: str, log_end: int) -> Iterator[PropertyMatches]:
    """Yield the parts of a topic that have records with the property `name`.

    Only records at or after `log_end` of the log are scanned.
    """

    def has_property(_: record_batch.Batch, columns: PropertyColumns) -> npt.NDArray[np.bool_]:
        marks: npt.NDArray[np.bool_] = columns.last(name).is_valid().to_numpy(zero_copy_only=False)
        return marks

    for queue_id in store.queues(topic):
        yield from _in_queue(store, topic, queue_id, has_property, log_end)


#: Returns which records of a batch match.
_Mark = Callable[[record_batch.Batch, PropertyColumns], npt.NDArray[np.bool_]]


def _in_queue(store: Store, topic: str, queue_id: int, mark: _Mark, log_end: int) -> Iterator[PropertyMatches]:
    offset, count = _first_since(store, topic, queue_id, log_end), _ENTRIES
    while offset < store.max_offset(topic, queue_id, written=True):
        try:
            with store.read(topic, queue_id, offset, count, _BYTES, written=True) as lease:
                batch = record_batch.parse(lease.records, lease.sizes, check_crc=False)
                columns = properties_of_batch(batch)
                marked = np.flatnonzero(mark(batch, columns))
                if len(marked):
                    yield PropertyMatches(topic, queue_id, batch, columns, marked)
                offset, count = lease.next_offset, _ENTRIES
        except Exception as error:  # noqa: BLE001 - a damaged record must not keep a broker from starting
            rejection_reason(error)
            if count > 1 and not isinstance(error, StoreCorrupt):
                count //= 2
            else:
                offset, count = offset + 1, _ENTRIES


def _first_since(store: Store, topic: str, queue_id: int, log_end: int) -> int:
    """Return the offset after the last message that lies before `log_end`.

    It searches from the queue's end, because a crash leaves few messages after `log_end`.
    """
    low, at = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id, written=True)
    while at > low:
        begin = max(low, at - _ENTRIES)
        places, sizes, _ = store.entries(topic, queue_id, begin, at - begin, written=True)
        older = np.flatnonzero((places < log_end) & (sizes != FILLER_SIZE))
        if len(older):
            return begin + int(older[-1]) + 1
        at = begin
    return low
