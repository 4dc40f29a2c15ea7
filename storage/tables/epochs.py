"""Recovery epochs: what tells a reader from before a loss of power that the log is not the one it read.

A machine that dies may take with it what was appended and not flushed, and the offsets of that are given to other
messages. So an opening that may have found less than was read begins a new *epoch*, and writes down, before anything
can be appended, where the log was cut. Who names the epoch that he read under is told by it from where on he has to
read again: the smallest cut of all later epochs.

In a group of replicas the elected one may lack what readers were shown: it begins a new epoch where its log ends, once
for each such election, also where it is only its successor that comes to do so.

An epoch is a random number, so that none is given twice if the file is lost or comes from a backup: whatever is named
and not known here is of a time of which nothing is known, and of what was read then nothing can be relied on.
"""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil, json_file

#: So many cuts are kept, the latest ones.
_CUTS: Final = 64
#: What an epoch is below; it is also above 0, which a reader says that knows of none.
_LIMIT: Final = 1 << 62

_log = logging.getLogger(__name__)


class Epochs:
    """The epochs of one directory. `cut` belongs to its opening; the rest may be read by any thread.

    Attributes:
        cut_at_open: where this opening has cut the log, or the election before it, None if neither did.
        election: the newest election (its master's epoch) for which a new epoch was begun; 0: none.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        """What the file at `path` says; without one that can be read, a new epoch, of which it tells if `writable`.

        Raises:
            StoreFull, StoreFailed: it cannot be written, or not be read now.
        """
        self._path = path
        self.cut_at_open: int | None = None
        known = _load(path)
        if known is not None:
            self._first, self._cuts, self.election = known
        else:
            self._first, self._cuts, self.election = _new_epoch(), [], 0
            if writable:
                fileutil.make_folder(path.parent)
                self._save()

    @property
    def current(self) -> int:
        """The newest epoch."""
        return self._cuts[-1][0] if self._cuts else self._first

    @property
    def newest_cut(self) -> int | None:
        """Where the newest epoch begins; None: no log was ever cut."""
        return self._cuts[-1][1] if self._cuts else None

    def cut(self, log_end: int, election: int = 0) -> None:
        """What lay behind `log_end` may be lost: a new epoch begins there, durably; StoreFull, StoreFailed.

        `election`: the one of which that is so, if it is one.
        """
        self.cut_at_open = log_end
        self.election = max(self.election, election)
        self._cuts.append((_new_epoch(), log_end))
        while len(self._cuts) > _CUTS:
            self._first, _ = self._cuts.pop(0)
        self._save()

    def cut_since(self, epoch: int) -> int | None:
        """Up to where the log is still the one that was read under `epoch`; None: all of it is.

        Of an epoch that is not known here nothing is known: 0.
        """
        epochs = [self._first, *(begun for begun, _ in self._cuts)]
        if epoch not in epochs:
            return 0
        return min((log_end for _, log_end in self._cuts[epochs.index(epoch) :]), default=None)

    def _save(self) -> None:
        # Without the `.bak` of other files: what is older than the newest cut would be taken for all there was.
        told = {"epoch": self.current, "first": self._first, "cuts": self._cuts, "election": self.election}
        fileutil.replace(self._path, json.dumps(told).encode())


def _new_epoch() -> int:
    return 1 + secrets.randbelow(_LIMIT - 1)


def _load(path: Path) -> tuple[int, list[tuple[int, int]], int] | None:
    """The oldest epoch that is known, the cuts since, and the election; None if there is nothing that can be read."""
    try:
        told = json.loads(fileutil.read_whole(path))
        cuts = [(int(epoch), int(log_end)) for epoch, log_end in told["cuts"]]
        current = int(told["epoch"])
        # Epochs were counted once: 1, 2, and so on.
        first = int(told["first"]) if "first" in told else cuts[0][0] - 1 if cuts else current
        election = int(told.get("election", 0))  # RayMQ 0.1 had none
        if current != (cuts[-1][0] if cuts else first):
            raise ValueError(f"epoch {current} is not the last of its cuts")
    except FileNotFoundError:
        return None
    except json_file.ANOTHER_FORM as error:
        _log.error("%s cannot be read, and who has read this store reads again: %s", path, error)
        return None
    return first, cuts, election
