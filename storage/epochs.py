"""Recovery epochs: what tells a reader from before a loss of power that the log is not the one it read.

A machine that dies may take with it what was appended and not flushed, and the offsets of that are given to other
messages. So an opening that may have found less than was read raises the *epoch*, and writes down, before anything can
be appended, where the log was cut. Who names the epoch that he read under is told by it from where on he has to read
again: the smallest cut of all later epochs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from raymq.storage import json_file

#: The epoch of a directory that has never lost anything.
FIRST: Final = 1
#: So many cuts are kept, the latest ones. Who comes from before them all is told the smallest of these.
_CUTS: Final = 64


class Epochs:
    """The epochs of one directory. `cut` belongs to its opening; the rest may be read by any thread.

    Attributes:
        current: this opening's epoch.
        was_cut: whether this opening began it.
    """

    def __init__(self, path: Path) -> None:
        """What the file at `path` says. StoreCorrupt: it cannot be read."""
        self._path = path
        self.was_cut = False
        known = json_file.load(path)
        self.current = int(known.get("epoch", FIRST))
        self._cuts = [(int(epoch), int(log_end)) for epoch, log_end in known.get("cuts", [])]

    def cut(self, log_end: int) -> None:
        """What lay behind `log_end` may be lost: a new epoch begins there, durably; StoreFull, StoreFailed."""
        self.current += 1
        self.was_cut = True
        self._cuts = [*self._cuts, (self.current, log_end)][-_CUTS:]
        json_file.save(self._path, {"epoch": self.current, "cuts": self._cuts})

    def cut_since(self, epoch: int) -> int | None:
        """Up to where the log is still the one that was read under `epoch`; None: all of it is."""
        return min((log_end for raised, log_end in self._cuts if raised > epoch), default=None)
