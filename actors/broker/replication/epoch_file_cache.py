"""Keep the epochs of an open broker in memory and in a file.

A change goes to the file first, then to the map: an epoch that is not on disk has not begun.
"""

from __future__ import annotations

from contextlib import suppress

from raymq.actors.broker.replication.epoch_file import EpochFile
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import StoreFull


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
