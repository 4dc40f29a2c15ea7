"""Stage rows and commit them without a network, look at staged rows in a store, and damage them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.staged_commit import StagedCommit
from raymq.actors.broker.core.appending.staged_transaction_writer import StagedTransactionWriter
from raymq.client.bulk.staged_write import StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.storage.errors import StoreError
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.records import record as layout
from raymq.storage.store import Store
from raymq.storage.tables import staged_records
from raymq.storage.tables.staged_chunk import ChunkEntry


def stage(
    staging: StagedTransactionWriter,
    transaction: str,
    part: str,
    number: int,
    topic_queue: tuple[str, int],
    records: memoryview,
    sizes: npt.NDArray[np.int32],
    coordinator: str = "",
) -> None:
    """Stage a chunk."""
    chunk = staging.append_chunk(transaction, part, number, topic_queue, records, sizes, coordinator)
    staging.record_chunk(transaction, coordinator, chunk)


def send_chunk(writer: StagedWriter, write: StagedWrite, *chunk: Any) -> None:
    """Stage a chunk over a socket: part, number, queue, records and sizes."""
    writer.begin(write.transaction, *chunk, coordinator=write.coordinator)
    writer.settle()


def begin(
    staging: StagedTransactionWriter, transaction: str, parts: Collection[str], rows: int | None = None
) -> StagedCommit:
    """Begin a commit, or continue one that was begun, as `StagedCommits` does."""
    begun = staging.open_commit(transaction, parts, rows)
    begun.load()
    if not begun.is_begun:
        try:
            begun.block_readers()
            begun.record_decision()
        except StoreError:
            staging.roll_back(transaction)
            raise
    return begun


def commit(
    staging: StagedTransactionWriter, transaction: str, parts: Collection[str], rows: int | None = None
) -> Iterator[int]:
    """Append the rows of a commit, and yield how many at each step; `close` has to follow."""
    if not staging.table.is_committed(transaction):
        yield from begin(staging, transaction, parts, rows).append()


def close(staging: StagedTransactionWriter, transaction: str) -> None:
    """Make a transaction visible that was appended."""
    staging.table.close(transaction)
    staging.show(transaction)


def abort(staging: StagedTransactionWriter, transaction: str) -> None:
    """Drop a transaction, unless its commit was begun."""
    staging.table.drop(transaction)
    staging.stop_tracking(transaction)


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
