"""Persist the producer table: a journal of its changes, completed from the log.

The journal saves work; the log is authoritative: without a journal the whole log is read. The length in a batch's first
record is not trusted: a crash may have cut the batch, and messages of others may lie where the rest of it would. So its
messages are counted, by the records that exist of its append.

Every few seconds the lanes that have changed are appended to the journal. After them follows the physical offset up to
which the journal covers the log. A lane that changes while it is saved may be saved in its later state; replaying the
same records of the log then changes nothing. When the journal has grown to three times its size without repeated lanes,
it is rewritten.

Nothing here blocks the broker's event loop for long: the data to save are collected in steps, and another thread writes
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.actors.broker.core.appending.idempotence import ProducerKey, ProducerStateTable, StoredBatch
from raymq.actors.broker.core.copies.property_scan import records_with_property
from raymq.actors.broker.core.copies.record_copy import parse_queue_id
from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.actors.errors import NotFoundError
from raymq.actors.request_limits import MAX_MESSAGES, check_count
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.frame_file import FrameFile
from raymq.storage.records import property_names as properties
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.records.record import Record
from raymq.storage.store import Store

#: How many lanes one step collects: half a millisecond.
_STEP_LANES: Final = 200
_LEAST_FOLD_BYTES: Final = 4 << 20
_LANES: Final = "l"
_POSITION: Final = "p"


class ProducerStateJournal:
    """The journal of one broker's table.

    `save` runs on the broker's thread; the functions that it yields run on any other.
    """

    def __init__(self, table: ProducerStateTable, store: Store, path: Path) -> None:
        """Open the journal; nothing is read before `restore`."""
        self._table = table
        self._store = store
        self._journal = FrameFile(path, writable=True)
        self._writing = threading.Lock()
        self._saved_to = -1
        self._fold_at = _LEAST_FOLD_BYTES

    def restore(self) -> None:
        """Fill the empty table from the journal and the rest of the log.

        If that fails, close the journal.
        """
        try:
            self._restore()
        except BaseException:
            self.close()
            raise

    def _restore(self) -> None:
        rows: list[Any] = []
        position = 0
        for kind, value in self._journal.entries:
            if kind == _LANES:
                rows += msgpack.unpackb(value)
            elif kind == _POSITION:
                position = int(value)
        self._journal.entries.clear()
        self._journal.behind.clear()  # these entries do not say to which position of the log they belong
        recovery_bounds = self._store.recovery_bounds
        is_less = self._table.load(rows, partial(_there, self._store))
        for topic, deleted_at in recovery_bounds.deleted_topics.items():
            if deleted_at >= position:
                self._table.forget_topic(topic)
        replay(self._table, self._store, min(position, recovery_bounds.log_end))
        # The log will get other messages at these places, also if an earlier open of the store truncated it and failed
        # before this point; or a later start could not read past the damage in the journal.
        if is_less or not recovery_bounds.has(position) or self._journal.is_damaged:
            for write in self._fold(recovery_bounds.log_end):
                write()
        self._fold_at = max(_LEAST_FOLD_BYTES, self._journal.length)

    def save(self) -> Iterator[Callable[[], object]]:
        """Save what has changed, in steps.

        Each step is quick, and yields a function that another thread has to run before the next step. If that function
        raises StoreFull or StoreFailed, the iteration ends, and the changes are saved by the next call.
        """
        self._table.expire()
        position = self._store.max_physical_offset
        if position == self._saved_to:
            return
        changed = self._table.take_dirty()
        done = False
        try:
            for packed in self._steps(changed):
                yield partial(self._append, _LANES, packed)
            yield partial(self._append, _POSITION, position)
            done = True
        finally:
            if not done:
                self._table.restore_dirty(changed)
        self._saved_to = position
        if self._journal.length >= self._fold_at:
            yield from self._fold(position)

    def close(self) -> None:
        """Close the file."""
        with self._writing:
            self._journal.close()

    def _steps(self, lanes: Iterable[ProducerKey]) -> Iterator[list[Any]]:
        waiting = iter(lanes)
        while chunk := list(islice(waiting, _STEP_LANES)):
            yield self._table.rows(chunk)

    def _fold(self, position: int) -> Iterator[Callable[[], object]]:
        entries: list[tuple[str, Any]] = []
        for rows in self._steps(self._table.lanes()):
            yield partial(_keep, entries, rows)
        entries.append((_POSITION, position))
        yield partial(self._rewrite, entries)
        self._fold_at = max(_LEAST_FOLD_BYTES, 3 * self._journal.length)

    def _append(self, kind: str, value: Any) -> None:
        with self._writing:
            self._journal.append((kind, msgpack.packb(value) if kind == _LANES else value))

    def _rewrite(self, entries: list[tuple[str, Any]]) -> None:
        with self._writing:
            self._journal.rewrite(entries)


def _keep(entries: list[tuple[str, Any]], rows: list[Any]) -> None:
    entries.append((_LANES, msgpack.packb(rows)))


def replay(table: ProducerStateTable, store: Store, position: int) -> None:
    """Update the table from the records of the log from `position` on."""
    found = records_with_property(store, properties.PRODUCER_SEQUENCE, position)
    for record in sorted(found, key=lambda record: record.physical_offset):
        try:
            _replay(table, store, record, record.properties[properties.PRODUCER_SEQUENCE])
        except Exception as error:  # noqa: BLE001 - a damaged record must not keep a broker from starting
            rejection_reason(error)
    table.expire()


def _replay(table: ProducerStateTable, store: Store, record: Record, value: str) -> None:
    topic = record.properties.get(properties.REAL_TOPIC, record.topic)
    real_queue_id = record.properties.get(properties.REAL_QID)
    try:
        queue_id = record.queue_id if real_queue_id is None else parse_queue_id(real_queue_id)
        sequence = ProducerSequence.from_value(value)
        check_count("count", "records", sequence.count, MAX_MESSAGES)
    except InvalidInput:
        return  # forged or damaged: none of our producers wrote it
    place = record.topic, record.queue_id, record.queue_offset
    count = store.appended_together(*place, sequence.count) if sequence.count > 1 else 1
    stored = StoredBatch(*place, count)
    table.replay((sequence.producer, topic, queue_id), sequence, stored, record.store_timestamp_ms / 1000)


def _there(store: Store, stored: StoredBatch) -> int:
    """Return how many messages of a place exist.

    The journal may cover more of the log than a loss of power has left.
    """
    try:
        return min(stored.count, store.max_offset(stored.topic, stored.queue_id, written=True) - stored.offset)
    except NotFoundError:
        return 0
