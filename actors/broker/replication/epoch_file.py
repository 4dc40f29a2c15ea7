"""Store the epochs of one broker in RocketMQ's file and a file of state sequences.

The second file has the state sequences at which the epochs begin. If it is behind or lost, an epoch is taken to begin
at the sequence of the one before, or 0. A returning broker then at worst cuts more of its state than necessary. The
format of both files is in `storage.tables.epoch_starts`.
"""

from __future__ import annotations

from pathlib import Path

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import StoreCorrupt
from raymq.storage.tables import leader_epoch_checkpoint


class EpochFile:
    """The two files of one directory.

    They are used by one thread. Saving blocks until they are on disk.
    """

    def __init__(self, path: Path, own: Path) -> None:
        """Create the files' object.

        `path` is RocketMQ's file, `own` is RayMQ's file beside it with the state sequences.
        """
        self._path = path
        self._own = own

    def load(self) -> EpochMap:
        """Return the epochs; none if there is no file.

        Raises:
            StoreCorrupt: neither a file nor its `.bak` is complete.
            StoreBusy, StoreFailed: they cannot be read (now).
        """
        sequences = dict(leader_epoch_checkpoint.load(self._own))
        epochs = EpochMap()
        sequence = 0
        for epoch, offset in leader_epoch_checkpoint.load(self._path):
            sequence = max(sequence, sequences.get(epoch, 0))
            try:
                epochs.append(EpochStart(epoch, StreamPosition(offset, sequence)))
            except ValueError as error:
                raise StoreCorrupt(str(self._path), 0, str(error), remedy=leader_epoch_checkpoint.REMEDY) from error
        return epochs

    def save(self, epochs: EpochMap) -> None:
        """Write both files, RayMQ's first.

        Raise StoreFull or StoreFailed if one or both files keep their old content.
        """
        leader_epoch_checkpoint.save(self._own, ((entry.epoch, entry.start.sequence) for entry in epochs))
        leader_epoch_checkpoint.save(self._path, ((entry.epoch, entry.start.offset) for entry in epochs))
