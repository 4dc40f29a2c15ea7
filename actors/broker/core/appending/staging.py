"""Staged writes of one broker: records of many tasks become visible together, once, when their driver commits.

A commit may be repeated after any failure: what is in the log already is not appended again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.copying import STAGED, Copying, Duty, Place
from raymq.actors.broker.core.copies.rewriting import Append
from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store
from raymq.storage.tables.staging import StagedChunk, StagedRecords, remove_swept


class Staging:
    """Takes chunks, and appends those of the parts that won."""

    def __init__(self, store: Store, append: Append, copying: Copying) -> None:
        self._store = store
        self._append = append
        self._copying = copying
        self._files = StagedRecords(store.directory)

    def stage(
        self,
        transaction: str,
        part: str,
        number: int,
        lane: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
    ) -> None:
        """Keep a chunk of `lane`'s records; nobody sees them before the commit.

        Raises:
            InvalidInput: a record that could not be appended; nothing is kept.
            StoreFull: the disk is too full for an append, too. StoreFailed.
        """
        self._store.check_room()
        self._store.check(records, sizes, lane)
        self._files.add(transaction, part, number, lane, records, sizes)

    def commit(self, transaction: str, parts: Sequence[str]) -> Iterator[int]:
        """Append every chunk of `parts`; yields after each how many records it added, so that the loop can breathe.

        `close` has to follow when the log is flushed.
        """
        if self._files.is_committed(transaction):
            return
        for part in parts:
            for chunk in self._files.chunks(transaction, part):
                records, sizes = self._missing(chunk)
                added = self._attempt(transaction, chunk, memoryview(records), sizes)
                yield added

    def close(self, transaction: str) -> None:
        """All of a transaction was appended and flushed: its data are not needed any more."""
        if not self._files.is_committed(transaction):
            self._files.close(transaction)

    def sweep(self, now: float | None = None) -> Callable[[], None] | None:
        """What removes the transactions that were given up by their writers, to be called on another thread; or None.

        Args:
            now: wall time in seconds; the system's clock without.
        """
        swept = self._files.sweep(now)
        return partial(remove_swept, swept) if swept else None

    def abort(self, transaction: str) -> None:
        """Forget a transaction that was not committed."""
        self._files.drop(transaction)

    def _attempt(self, transaction: str, chunk: StagedChunk, records: memoryview, sizes: npt.NDArray[np.int32]) -> int:
        """`_add` what is missing of a chunk, and note in which part of the log that was."""
        self._files.declare(chunk, self._store.max_physical_offset)
        try:
            added = self._add(transaction, chunk, records, sizes)
            self._files.finish(chunk, self._store.max_physical_offset)
        except Exception:
            with contextlib.suppress(StoreError):  # the disk takes nothing from others either, until the next opening
                self._files.interrupt(chunk, self._store.max_physical_offset)
            raise
        return added

    def _add(self, transaction: str, chunk: StagedChunk, records: memoryview, sizes: npt.NDArray[np.int32]) -> int:
        """Append records of a chunk and say how many; those that were damaged since they were staged are set aside."""
        ends = np.cumsum(sizes, dtype=np.int64)
        duty, lane = Duty(STAGED, transaction), (chunk.topic, chunk.queue_id)
        refused: list[int] = []

        def append(part: range) -> None:
            begin, end = int(ends[part[0]] - sizes[part[0]]), int(ends[part[-1]])
            self._append(records[begin:end], sizes[part.start : part.stop], lane)

        def refuse(part: range, reason: str) -> None:
            places = [Place(*lane, message_id=f"{chunk.path.name}, record {number}") for number in part]
            self._copying.refuse(duty, places, reason)
            refused.extend(part)

        self._copying.by_halves(range(len(sizes)), append, lambda _, __: None, refuse)
        return len(sizes) - len(refused)

    def _missing(self, chunk: StagedChunk) -> tuple[bytes | memoryview, npt.NDArray[np.int32]]:
        """The records of `chunk` that an earlier, interrupted commit has not appended."""
        attempts = self._files.attempts(chunk)
        if not attempts:
            return chunk.records, chunk.sizes
        stored = Counter(
            _sense(record)
            for begin, end in attempts
            for record in self._between(begin, end)
            if record.topic == chunk.topic and record.queue_id == chunk.queue_id
        )
        kept, position = [], 0
        for size in chunk.sizes.tolist():
            sense = _sense_of(chunk.records, position)
            if sense is not None and stored[sense]:
                stored[sense] -= 1  # rows may be alike
            else:
                kept.append(chunk.records[position : position + size])
            position += size
        return b"".join(kept), np.fromiter(map(len, kept), np.int32, len(kept))

    def _between(self, begin: int, end: int | None) -> Iterator[Record]:
        """The records in a part of the log; None: to its end."""
        if begin == end:
            return iter(())
        return takewhile(lambda record: end is None or record.physical_offset < end, self._store.walk(begin))


def _sense(record: Record) -> bytes:
    """What a record says, in 16 bytes. Its unique key alone would not do: some senders leave it out."""
    told = repr(sorted(record.properties.items())).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(record.body + told, digest_size=16).digest()


def _sense_of(records: memoryview, position: int) -> bytes | None:
    """The same; None where the record cannot be read: then its append says so."""
    try:
        return _sense(decode(records, position, check_crc=False))
    except StoreCorrupt:
        return None
