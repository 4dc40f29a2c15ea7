"""Staged writes of one broker: records of many tasks become visible together, once, when their driver commits.

A commit may be repeated after any failure: what is in the log already is not appended again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.core.rewriting import Append
from raymq.storage.record import decode
from raymq.storage.staging import StagedChunk, StagedRecords
from raymq.storage.store import Store


class Staging:
    """Takes chunks, and appends those of the parts that won."""

    def __init__(self, store: Store, append: Append) -> None:
        self._store = store
        self._append = append
        self._files = StagedRecords(store.directory)
        self._files.sweep()

    def stage(
        self,
        transaction: str,
        part: str,
        number: int,
        lane: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
    ) -> None:
        """Keep a chunk of `lane`'s records; nobody sees them before the commit."""
        self._files.add(transaction, part, number, lane, records, sizes)

    def commit(self, transaction: str, parts: Sequence[str]) -> Iterator[int]:
        """Append every chunk of `parts`; yields after each how many records it added, so that the loop can breathe."""
        if self._files.is_committed(transaction):
            return
        for part in parts:
            for chunk in self._files.chunks(transaction, part):
                records, sizes = self._missing(chunk)
                if len(sizes):
                    self._append(records, sizes, (chunk.topic, chunk.queue_id))
                self._files.finish(chunk)
                yield len(sizes)
        self._files.close(transaction)

    def abort(self, transaction: str) -> None:
        """Forget a transaction that was not committed."""
        self._files.drop(transaction)

    def _missing(self, chunk: StagedChunk) -> tuple[bytes | memoryview, npt.NDArray[np.int32]]:
        """The records of `chunk` that an earlier, interrupted commit has not appended."""
        declared = self._files.intent(chunk)
        if declared is None:
            self._files.declare(chunk, self._store.max_physical_offset)
            return chunk.records, chunk.sizes
        stored = {
            record.unique_key
            for record in self._store.walk(declared)
            if record.topic == chunk.topic and record.queue_id == chunk.queue_id
        }
        kept, position = [], 0
        for size in chunk.sizes.tolist():
            if decode(chunk.records, position).unique_key not in stored:
                kept.append(chunk.records[position : position + size])
            position += size
        return b"".join(kept), np.fromiter(map(len, kept), np.int32, len(kept))
