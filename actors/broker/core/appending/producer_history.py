"""The producer table through restarts: a journal of its changes beside the store, and what the log says since.

The journal saves work, the log is the truth: without a journal the whole log is read. What a batch's first record says
of its length is not believed: a death may have cut the batch, and others' messages may lie where its own would. So they
are counted, by what there is of the append that brought them.

Every few seconds the lanes that have changed are appended to the journal, and behind them the place of the log up to
which it knows everything. Lanes that change while they are saved may be in it as they are later: what the log says of
them again changes nothing. When the journal has grown to three times what it would be without lanes that stand in it
again, it is written anew.

Nothing here takes the broker's loop for long: what is saved is collected in steps, and written by another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.actors.broker.core.appending.idempotence import Lane, ProducerTable, StoredBatch
from raymq.actors.broker.core.copies.copying import reason_of
from raymq.actors.broker.core.copies.marked_records import marked_records
from raymq.actors.broker.core.copies.rewriting import queue_number
from raymq.actors.errors import NotFoundError
from raymq.actors.request_limits import MAX_MESSAGES, check_count
from raymq.storage.errors import InvalidInput
from raymq.storage.records import property_names as properties
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.journal import Journal

#: How many lanes one step collects: half a millisecond.
_STEP_LANES: Final = 200
_LEAST_FOLD_BYTES: Final = 4 << 20
_LANES: Final = "l"
_POSITION: Final = "p"


class ProducerHistory:
    """The journal of one broker's table. `save` belongs to the broker's thread, what it yields to any other."""

    def __init__(self, table: ProducerTable, store: Store, path: Path) -> None:
        """Open the journal; nothing is read before `restore`."""
        self._table = table
        self._store = store
        self._journal = Journal(path, writable=True)
        self._writing = threading.Lock()
        self._saved_to = -1
        self._fold_at = _LEAST_FOLD_BYTES

    def restore(self) -> None:
        """Fill the empty table from the journal and from the log behind it; where that fails, let go of the journal."""
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
        self._journal.behind.clear()  # which place of the log they speak of is not said there
        remains = self._store.remains
        is_less = self._table.load(rows, partial(_there, self._store))
        for topic, deleted_at in remains.deleted_topics.items():
            if deleted_at >= position:
                self._table.forget_topic(topic)
        replay(self._table, self._store, min(position, remains.log_end))
        # The log will have other messages at these places, also where an earlier opening of the store has cut it, which
        # came to nothing before this; or a start hears nothing behind what is damaged.
        if is_less or not remains.has(position) or self._journal.damage:
            for write in self._fold(remains.log_end):
                write()
        self._fold_at = max(_LEAST_FOLD_BYTES, self._journal.length)

    def save(self) -> Iterator[Callable[[], object]]:
        """Save what has changed: each step is quick, and yields what another thread has to do before the next one.

        If that raises StoreFull or StoreFailed the iteration ends there, and what was not saved will be.
        """
        self._table.expire()
        position = self._store.max_physical_offset
        if position == self._saved_to:
            return
        changed = self._table.take_changed()
        done = False
        try:
            for packed in self._steps(changed):
                yield partial(self._append, _LANES, packed)
            yield partial(self._append, _POSITION, position)
            done = True
        finally:
            if not done:
                self._table.give_back(changed)
        self._saved_to = position
        if self._journal.length >= self._fold_at:
            yield from self._fold(position)

    def close(self) -> None:
        """Let go of the file."""
        with self._writing:
            self._journal.close()

    def _steps(self, lanes: Iterable[Lane]) -> Iterator[list[Any]]:
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


def replay(table: ProducerTable, store: Store, position: int) -> None:
    """Tell the table what the log says from `position` on."""
    found = marked_records(store, properties.PRODUCER_SEQUENCE, position)
    for record in sorted(found, key=lambda record: record.physical_offset):
        try:
            _replay(table, store, record, record.properties[properties.PRODUCER_SEQUENCE])
        except Exception as error:  # noqa: BLE001 - nothing that is stored keeps a broker from starting
            reason_of(error)
    table.expire()


def _replay(table: ProducerTable, store: Store, record: Record, value: str) -> None:
    topic = record.properties.get(properties.REAL_TOPIC, record.topic)
    told = record.properties.get(properties.REAL_QID)
    try:
        queue_id = record.queue_id if told is None else queue_number(told)
        sequence = ProducerSequence.from_value(value)
        check_count("count", "records", sequence.count, MAX_MESSAGES)
    except InvalidInput:
        return  # forged, or damaged: it is no producer's of ours
    place = record.topic, record.queue_id, record.queue_offset
    count = store.appended_together(*place, sequence.count) if sequence.count > 1 else 1
    stored = StoredBatch(*place, count)
    table.replay((sequence.producer, topic, queue_id), sequence, stored, record.store_timestamp_ms / 1000)


def _there(store: Store, stored: StoredBatch) -> int:
    """How many messages of a place there are: the journal may know more of the log than a loss of power has left."""
    try:
        return min(stored.count, store.max_offset(stored.topic, stored.queue_id, written=True) - stored.offset)
    except NotFoundError:
        return 0
