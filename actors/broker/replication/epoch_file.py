"""The epochs of one broker on disk: RocketMQ's file, and beside it the state sequences at which they begin.

Where the file of the sequences is behind or lost, an epoch is taken to begin at the sequence of the one before, or 0,
which only ever makes a returning broker cut more of its state than it had to. The form of both is in
`storage.tables.epoch_starts`.
"""

from __future__ import annotations

from pathlib import Path

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.storage.errors import StoreCorrupt
from raymq.storage.tables import epoch_starts


class EpochFile:
    """The two files of one directory. Saving blocks until they are on disk; one thread."""

    def __init__(self, path: Path, own: Path) -> None:
        """`path`: RocketMQ's file. `own`: ours beside it, with the state sequences."""
        self._path = path
        self._own = own

    def load(self) -> EpochMap:
        """The epochs, none if there is no file.

        Raises:
            StoreCorrupt: neither a file nor its `.bak` is whole.
            StoreBusy, StoreFailed: they cannot be read (now).
        """
        sequences = dict(epoch_starts.load(self._own))
        made = EpochMap()
        sequence = 0
        for epoch, offset in epoch_starts.load(self._path):
            sequence = max(sequence, sequences.get(epoch, 0))
            try:
                made.append(EpochStart(epoch, StreamPosition(offset, sequence)))
            except ValueError as error:
                raise StoreCorrupt(str(self._path), 0, str(error), remedy=epoch_starts.REMEDY) from error
        return made

    def save(self, epochs: EpochMap) -> None:
        """Write both, ours first; StoreFull, StoreFailed: what was there stays, for one of them or both."""
        epoch_starts.save(self._own, ((entry.epoch, entry.start.sequence) for entry in epochs))
        epoch_starts.save(self._path, ((entry.epoch, entry.start.offset) for entry in epochs))
