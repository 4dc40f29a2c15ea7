"""The producer table through restarts: a snapshot beside the store, and what the log says since.

The snapshot saves work, the log is the truth: without a snapshot the whole log is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raymq.actors.core.idempotence import ProducerTable, StoredBatch
from raymq.actors.core.marked_records import marked_records
from raymq.actors.core.rewriting import queue_number
from raymq.actors.errors import NotFoundError, StoreCorrupt
from raymq.storage import json_file, properties
from raymq.storage.errors import InvalidInput
from raymq.storage.producer_sequence import ProducerSequence
from raymq.storage.record import Record
from raymq.storage.store import Store


def restore(table: ProducerTable, store: Store, file: Path) -> None:
    """Fill an empty table from the snapshot, if there is one, and from the log behind it."""
    try:
        known = json_file.load(file)
    except StoreCorrupt:
        known = {}
    table.load(known.get("lanes", []), lambda stored: _is_there(store, stored))
    found = marked_records(store, properties.PRODUCER_SEQUENCE, int(known.get("position", 0)))
    for record in sorted(found, key=lambda record: record.physical_offset):
        _replay(table, record, record.properties[properties.PRODUCER_SEQUENCE])
    table.expire()


def snapshot(table: ProducerTable, store: Store) -> dict[str, Any]:
    """What `restore` reads; to be saved by `json_file.save`."""
    return {"position": store.max_physical_offset, "lanes": table.dump()}


def _replay(table: ProducerTable, record: Record, value: str) -> None:
    topic = record.properties.get(properties.REAL_TOPIC, record.topic)
    told = record.properties.get(properties.REAL_QID)
    try:
        queue_id = record.queue_id if told is None else queue_number(told)
        sequence = ProducerSequence.from_value(value)
    except InvalidInput:
        return  # forged, or damaged: it is no producer's of ours
    stored = StoredBatch(record.topic, record.queue_id, record.queue_offset, sequence.count)
    table.replay((sequence.producer, topic, queue_id), sequence, stored, record.store_timestamp_ms / 1000)


def _is_there(store: Store, stored: StoredBatch) -> bool:
    try:
        return stored.offset + stored.count <= store.max_offset(stored.topic, stored.queue_id)
    except NotFoundError:
        return False
