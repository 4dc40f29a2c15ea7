"""Records and small stores for the tests of the storage package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raymq.storage.config import StoreConfig
from raymq.storage.log.message_writer import AppendResult
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store

SMALL = StoreConfig(
    commitlog_file_bytes=4096,
    consume_queue_file_entries=16,
    index_slots=50,
    index_entries=40,
    disk_refuse_ratio=1.0,
)
#: Settings of a store whose messages expire after an hour, at any time of the day.
EXPIRING = replace(
    SMALL, commitlog_file_bytes=1 << 16, consume_queue_file_entries=1_000, retention_hours=1.0, delete_at_hour="*"
)


def make_record(
    body: bytes = b"body",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    tags: str | None = None,
    keys: str | None = None,
    unique_key: str | None = None,
    delay_level: int | None = None,
    born_host: tuple[str, int] = ("10.0.0.1", 5),
    **fields: Any,
) -> bytes:
    """Return one record as a producer sends it."""
    level = None if delay_level is None else str(delay_level)
    named = {"TAGS": tags, "KEYS": keys, "UNIQ_KEY": unique_key, "DELAY": level}
    properties = encode_properties({name: value for name, value in named.items() if value is not None})
    return encode(topic, queue_id, body, properties, born_timestamp_ms=1_700_000_000_000, born_host=born_host, **fields)


def append(store: Store, *records: bytes) -> AppendResult:
    """Append records as one batch."""
    return store.append(b"".join(records), np.array([len(record) for record in records], np.int32))


def write_entries(store: Store) -> None:
    """Write all entries to the queues' files, which the store does a moment later."""
    writer = store._dispatcher.entry_writer
    assert writer is not None
    for queue in store._dispatcher.queues.values():
        writer.write(queue)


def bodies(store: Store, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of a queue from its minimum to its maximum offset."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        with store.read(topic, queue_id, offset, 32) as lease:
            found += [record.body for record in lease.messages()]
            offset = lease.next_offset
    return found


def log_file(directory: Path, start: int = 0) -> Path:
    """Return the path of a commit log file."""
    return directory / "commitlog" / f"{start:020d}"


def flip_byte(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0xFF]))
