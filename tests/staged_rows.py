"""Look at staged rows in a store, and damage them."""

from __future__ import annotations

import struct
from dataclasses import replace

from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.records import record as layout
from raymq.storage.store import Store
from raymq.storage.tables import staged_records
from raymq.storage.tables.staged_records import ChunkEntry


def open_transactions(store: Store) -> set[str]:
    """Return the transactions that have rows here and are not over."""
    return {each.name for each in store.tables.staged.transactions() if each.over is None}


def chunks_of(store: Store, transaction: str) -> list[ChunkEntry]:
    """Return all chunks of an unfinished transaction."""
    found = store.tables.staged._transactions.get(transaction)
    return [] if found is None else sorted(found.chunks.values(), key=lambda chunk: chunk.key)


def body_of(store: Store, transaction: str, part: str, number: int) -> memoryview:
    """Return a writable view of the body of a chunk's first record in the log."""
    chunk = store.tables.staged.chunk(transaction, (part, number))
    assert chunk is not None
    offset, _ = chunk.places[0]
    file = store._log.files.file_at(offset)
    at = offset - file.start + layout.OFFSET_BODY
    (length,) = struct.unpack_from(">i", file.view, at - 4)
    return file.view[at : at + length]


def overwrite(store: Store, transaction: str, part: str, number: int, found: bytes, content: bytes) -> None:
    """Replace `found`, which occurs once in the body of a chunk's first record, by as many bytes."""
    body = body_of(store, transaction, part, number)
    assert bytes(body).count(found) == 1
    at = bytes(body).index(found)
    body[at : at + len(found)] = content


def cut_header(store: Store, transaction: str, part: str, number: int) -> None:
    """Overwrite the header of a chunk with zeros."""
    body_of(store, transaction, part, number)[:50] = bytes(50)


def lose_power(store: Store) -> None:
    """Lose the progress of commits, which is not synced; the log keeps everything."""
    table = store.tables.staged
    for name, known in table._transactions.items():
        for chunk in list(known.chunks.values()):
            table.record(*staged_records._progress(name, replace(chunk, attempts=(), done_at=None, lost=None)))
    clamp(store, memory_lost=True)


def clamp(store: Store, *, memory_lost: bool) -> None:
    """Clamp the table as a start would whose log has lost nothing."""
    table = store.tables.staged
    for fields in list(table.clamp(RecoveryBounds(store.max_physical_offset, memory_lost=memory_lost))):
        table.record(*fields)
