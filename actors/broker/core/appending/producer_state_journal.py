"""Persist the producer table: in the state journal, completed from the log.

The saved states save work; the log is authoritative: without them the whole log is read. The length in a batch's first
record is not trusted: a crash may have cut the batch, and messages of others may lie where the rest of it would. So its
messages are counted, by the records that exist of its append.

Every few seconds the lanes that have changed are saved. After them follows the physical offset up to which they cover
the log. A lane that changes while it is saved may be saved in its later state; replaying the same records of the log
then changes nothing.

Nothing here blocks the broker's event loop for long: the data to save are collected in steps, and another thread writes
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from raymq.actors.broker.core.appending.idempotence import ProducerKey, ProducerStateTable, StoredBatch
from raymq.actors.broker.core.copies.property_scan import records_with_property
from raymq.actors.broker.core.copies.record_copy import parse_queue_id
from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.actors.errors import NotFoundError
from raymq.actors.request_limits import MAX_MESSAGES, check_count
from raymq.storage.errors import InvalidInput
from raymq.storage.records import property_names as properties
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.producer_states import EVENT_LANES


class ProducerStateJournal:
    """Saves one broker's table in the state journal.

    `save` runs on the broker's thread; the functions that it yields run on any other.
    """

    def __init__(self, table: ProducerStateTable, store: Store) -> None:
        self._table = table
        self._store = store
        self._states = store.tables.producer_states
        self._saved_to = -1
        #: How many saves were begun: the writes of a cancelled one may still wait on another thread.
        self._saves = 0
        self._writing = threading.Lock()

    def restore(self) -> None:
        """Fill the empty table from the saved states and the rest of the log.

        Raise StoreFull or StoreFailed if lanes that have lost messages could not be saved.
        """
        position, recovery_bounds = self._states.position, self._store.recovery_bounds
        is_less = self._table.load(self._states.rows(), partial(_there, self._store))
        for topic, deleted_at in recovery_bounds.deleted_topics.items():
            if deleted_at >= position:  # a save that the deletion overtook may have brought lanes back
                self._table.forget_topic(topic)
        replay(self._table, self._store, min(position, recovery_bounds.log_end))
        if is_less:  # the log will get other messages at these places
            for rows in self._steps({**self._table.take_dirty(), **dict.fromkeys(self._table.lanes())}):
                self._states.put(rows)
            self._states.advance(recovery_bounds.log_end)
            self._states.sync()

    def save(self) -> Iterator[Callable[[], object]]:
        """Save what has changed, in steps.

        Each step is quick, and yields a function that another thread has to run before the next step. If that function
        raises StoreFull or StoreFailed, the iteration ends, and the changes are saved by the next call. A function of
        an earlier iteration does nothing once another one was begun.
        """
        self._table.expire()
        position = self._store.max_physical_offset
        changed = self._table.take_dirty()
        if not changed and position == self._saved_to:
            return
        self._saves += 1
        done = False
        try:
            for rows in self._steps(changed):
                yield partial(self._write, self._saves, partial(self._states.put, rows))
            yield partial(self._write, self._saves, partial(self._states.advance, position))
            done = True
        finally:
            if not done:
                self._table.restore_dirty(changed)
        self._saved_to = position

    def _write(self, save: int, write: Callable[[], None]) -> None:
        with self._writing:
            if save == self._saves:  # else older rows would replace newer ones
                write()

    def _steps(self, lanes: Iterable[ProducerKey]) -> Iterator[list[Any]]:
        waiting = iter(lanes)
        while chunk := list(islice(waiting, EVENT_LANES)):
            yield self._table.rows(chunk)


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
