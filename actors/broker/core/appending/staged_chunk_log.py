"""Keep chunks of staged rows in the commit log, in their own topic.

A chunk that has to outlive its log files is appended again before they are deleted. The table of staged writes gets the
new places when the copies are on disk, here and on all in-sync replicas. The files may be deleted when that event is on
disk, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.core.copies.record_copy import RecordAppender, join
from raymq.storage.clock import wall_ms
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record import decode
from raymq.storage.staged_topic import STAGED_QUEUE
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import (
    ChunkEntry,
    ChunkKey,
    Places,
    StagedChunk,
    chunk_name,
    decode_chunk,
    encode_pieces,
    is_piece_of,
)
from raymq.storage.tables.staged_records import StagedRecords

#: The length of the records in the log, in bytes, unless its files are small.
_PIECE_BYTES: Final = 1 << 20
#: One step appends about this many bytes again, ...
_STEP_BYTES: Final = 4 << 20
#: ... as long as at most this many chunks wait for the disk.
_MAX_MOVES: Final = 1_000


@dataclass(slots=True)
class _Move:
    """A chunk whose records were appended again.

    Attributes:
        chunk: the chunk at its former places.
        places: the new ones.
        log_end: where the log ends after them.
        event: the number of the event that says so; 0 before.
    """

    transaction: str
    chunk: ChunkEntry
    places: Places
    log_end: int
    event: int = 0


class StagedChunkLog:
    """The chunks of staged rows in one store's log. Used on the broker's event loop."""

    def __init__(self, store: Store, table: StagedRecords, append: RecordAppender) -> None:
        self._store = store
        self._table = table
        self._append = append
        self._piece_bytes = min(_PIECE_BYTES, store.config.commitlog_file_bytes // 4)
        self._moves: dict[tuple[str, ChunkKey], _Move] = {}

    def append(self, name: str, content: bytes) -> Places:
        """Append an encoded chunk, and return the places of its records.

        Raise StoreFull or StoreFailed if it could not be appended.
        """
        pieces = encode_pieces(content, name, self._piece_bytes, wall_ms())
        records, sizes = join(pieces)
        placed = self._append(records, sizes, STAGED_QUEUE, check_crc=False, again=True)
        return tuple(zip(placed.physical_offsets.tolist(), sizes.tolist(), strict=True))

    def read(self, transaction: str, chunk: ChunkEntry) -> StagedChunk:
        """Return the rows of a chunk, which are not checked one by one.

        Raise StoreCorrupt if the chunk cannot be read.
        """
        name = chunk_name(transaction, *chunk.key)
        found = decode_chunk(self._content(name, chunk.places), name)
        if (found.topic, found.queue_id, len(found.sizes)) != (chunk.topic, chunk.queue_id, chunk.rows):
            raise StoreCorrupt(name, 0, "its rows are not those that were staged")
        return found

    def _content(self, name: str, places: Places) -> bytes:
        if not places:
            raise StoreCorrupt(name, 0, "its records are not in the log any more")
        bodies = []
        for offset, size in places:
            if not self._store.min_physical_offset <= offset <= self._store.max_physical_offset - size:
                raise StoreCorrupt(name, offset, "its records are not in the log any more")
            # The rows have checksums of their own, which are compared when the commit appends them.
            record = decode(self._store.raw_many([offset], [size]), check_crc=False)
            if not is_piece_of(record, name):
                raise StoreCorrupt(name, offset, "another record is in the place of the chunk")
            bodies.append(record.body)
        return b"".join(bodies)

    # -- retention -----------------------------------------------------------------------------------------------

    def first_log_position(self) -> int | None:
        """Return the physical offset of the first record to keep, or None."""
        former = [move.chunk.begin for move in self._moves.values() if move.event]
        return min((begin for begin in (self._table.begin(), *former) if begin is not None), default=None)

    def move_before(self, log_end: int) -> bool:
        """Append some chunks before `log_end` again; return False if none are due.

        Raise StoreFull or StoreFailed if it was not done; the next call tries again.
        """
        has_changed = self._settle_moves()
        left = _STEP_BYTES
        for _, transaction, key in self._table.chunks_before(log_end):
            chunk = self._table.chunk(transaction, key)
            if chunk is None or (transaction, key) in self._moves:
                continue
            if left <= 0 or len(self._moves) >= _MAX_MOVES:
                break
            left -= self._move(transaction, chunk)
            has_changed = True
        return has_changed

    def _move(self, transaction: str, chunk: ChunkEntry) -> int:
        """Append a chunk again and return its bytes; unreadable ones are lost."""
        name = chunk_name(transaction, *chunk.key)
        try:
            content = self._content(name, chunk.places)
        except StoreCorrupt:
            self._table.move(transaction, chunk.key, ())
            return 0
        places = self.append(name, content)
        self._moves[transaction, chunk.key] = _Move(transaction, chunk, places, self._store.max_physical_offset)
        return len(content)

    def _settle_moves(self) -> bool:
        """Record the places of synced copies; return True if there were any."""
        has_changed, durable = False, self._store.confirmed.durable_offset
        for move in list(self._moves.values()):
            known = self._table.chunk(move.transaction, move.chunk.key)
            if not move.event and known is not None and known.places == move.chunk.places:
                if move.log_end <= durable:
                    move.event = self._table.move(move.transaction, move.chunk.key, move.places)
                    has_changed = True
            elif self._table.is_on_disk(move.event):
                del self._moves[move.transaction, move.chunk.key]
        return has_changed
