"""The epochs of an open broker: its map, and the file that is always as new as the map.

Whoever changes one changes both, and the file first: an epoch that is not on disk has not begun.
"""

from __future__ import annotations

from contextlib import suppress

from raymq.actors.broker.replication.epoch_file import EpochFile
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.storage.errors import StoreFull


class KeptEpochs:
    """One broker's epochs, from the opening of its store on. One thread; each change waits for the disk.

    Attributes:
        map: the epochs; not to be changed, and another one after each change.
    """

    def __init__(self, file: EpochFile, begin: StreamPosition, end: StreamPosition) -> None:
        """Read the file of a broker whose stream was found to reach from `begin` to `end`: what lies outside goes.

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
        """A new epoch begins; it has when this returns.

        Raises:
            InvalidInput: it is not newer, or begins before the last one. StoreFull: it has not begun. StoreFailed: that
                is unknown; open the store again.
        """
        changed = _copy(self.map)
        changed.append(entry)
        self._keep(changed)

    def replace(self, epochs: EpochMap) -> None:
        """A snapshot brings its own; raises as `begin`."""
        self._keep(_copy(epochs))

    def drop_before(self, begin: StreamPosition) -> None:
        """The stream begins there now, after retention or a folding: forget what ended before that.

        A full disk changes nothing, the next call does it; StoreFailed as `begin`.
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
