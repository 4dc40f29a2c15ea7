"""Store the epochs of one broker in RocketMQ's file and a file of state sequences.

The second file has the state sequences at which the epochs begin. If it is behind or lost, an epoch is taken to begin
at the sequence of the one before, or 0. A returning broker then at worst cuts more of its state than necessary. The
format of both files is in `storage.tables.leader_epoch_checkpoint`.

While a broker is open, a change goes to the files first, then to the map in memory: an epoch that is not on disk has
not begun.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import StoreCorrupt, StoreFull
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


class EpochFileCache:
    """One broker's epochs while its store is open.

    It is used by one thread; each change waits for the disk.

    Attributes:
        map: the epochs; do not change it. Each change replaces it.
    """

    def __init__(self, file: EpochFile, begin: StreamPosition, end: StreamPosition) -> None:
        """Read the file of a broker whose stream reaches from `begin` to `end`.

        Epochs outside of that range are dropped.

        Raises:
            StoreCorrupt, StoreBusy, StoreFull, StoreFailed: as the file's `load` and `save`.
        """
        self._file = file
        self.map = file.load()
        changed = _copy(self.map)
        changed.clamp(end)
        changed.drop_before(begin)
        self._keep(changed)

    def begin(self, entry: EpochStart) -> None:
        """Begin a new epoch; it has begun when this returns.

        Raises:
            InvalidInput: it is not newer, or begins before the last one.
            StoreFull: it has not begun.
            StoreFailed: it is unknown whether it has begun; open the store again.
        """
        changed = _copy(self.map)
        changed.append(entry)
        self._keep(changed)

    def replace(self, epochs: EpochMap) -> None:
        """Replace the epochs by those of a snapshot; raise as `begin` does."""
        self._keep(_copy(epochs))

    def drop_before(self, begin: StreamPosition) -> None:
        """Forget epochs that ended before `begin`, where the stream now begins.

        Call it after retention. A full disk changes nothing, and the next call drops them. Raise
        StoreFailed as `begin` does.
        """
        changed = _copy(self.map)
        changed.drop_before(begin)
        with suppress(StoreFull):
            self._keep(changed)

    def _keep(self, changed: EpochMap) -> None:
        if changed != self.map:
            self._file.save(changed)
            self.map = changed


def _copy(epochs: EpochMap) -> EpochMap:
    return EpochMap(epochs)
