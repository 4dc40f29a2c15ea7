"""Recovery epochs: show a reader whether the log was truncated since it last read.

A machine crash can lose records that were appended and not flushed, and their offsets are given to other messages. So
an opening that may have found less than was read begins a new *epoch*. Before anything can be appended, it records
where the log was truncated. A reader sends the epoch under which it read. The answer is the position from which it has
to read again: the smallest truncation of all later epochs.

In a group of replicas, the elected leader may lack records that readers have received. It begins a new epoch where its
log ends, once for each such election. A successor does this if the elected leader did not.

An epoch is a random number, so that no epoch is used twice if the file is lost or restored from a backup. An epoch that
is not known here belongs to an unknown past, and nothing that was read under it is reliable.
"""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil, json_file

#: The number of latest truncations that are kept.
_CUTS: Final = 64
#: The upper limit of epochs, which are also above 0: a reader without an epoch sends 0.
_LIMIT: Final = 1 << 62

_log = logging.getLogger(__name__)


class RecoveryEpochs:
    """The recovery epochs of one directory.

    Only the directory's opening calls `cut`; any thread may read the rest.

    Attributes:
        truncated_at_open: where this opening, or the election before it, truncated the log; None if neither did.
        election: the newest election (its leader's epoch) for which a new epoch was begun; 0: none.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        """Read the file at `path`, or begin a new epoch if it cannot be read.

        A new epoch is written to the file if `writable`.

        Raises:
            StoreFull, StoreFailed: it cannot be written, or cannot be read now.
        """
        self._path = path
        self.truncated_at_open: int | None = None
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
        """Return the newest epoch."""
        return self._cuts[-1][0] if self._cuts else self._first

    @property
    def last_truncation(self) -> int | None:
        """Return where the newest epoch begins, or None if the log was never truncated."""
        return self._cuts[-1][1] if self._cuts else None

    def cut(self, log_end: int, election: int = 0) -> None:
        """Begin a new epoch at `log_end`, durably; later records may be lost.

        Raise StoreFull or StoreFailed if it cannot be written.

        Args:
            election: the election that caused the loss; 0: none.
        """
        self.truncated_at_open = log_end
        self.election = max(self.election, election)
        self._cuts.append((_new_epoch(), log_end))
        while len(self._cuts) > _CUTS:
            self._first, _ = self._cuts.pop(0)
        self._save()

    def truncated_since(self, epoch: int) -> int | None:
        """Return up to where the log is unchanged since `epoch`.

        None means all of it. An epoch that is not known here returns 0.
        """
        epochs = [self._first, *(begun for begun, _ in self._cuts)]
        if epoch not in epochs:
            return 0
        return min((log_end for _, log_end in self._cuts[epochs.index(epoch) :]), default=None)

    def _save(self) -> None:
        # Other files have a `.bak`; this one has none, because content without the newest truncation would look
        # complete.
        content = {"epoch": self.current, "first": self._first, "cuts": self._cuts, "election": self.election}
        fileutil.replace(self._path, json.dumps(content).encode())


def _new_epoch() -> int:
    return 1 + secrets.randbelow(_LIMIT - 1)


def _load(path: Path) -> tuple[int, list[tuple[int, int]], int] | None:
    """Return the oldest known epoch, the truncations since, and the election.

    Return None if there is no readable file.
    """
    try:
        saved = json.loads(fileutil.read_whole(path))
        cuts = [(int(epoch), int(log_end)) for epoch, log_end in saved["cuts"]]
        current = int(saved["epoch"])
        # Older versions counted epochs: 1, 2, and so on.
        first = int(saved["first"]) if "first" in saved else cuts[0][0] - 1 if cuts else current
        election = int(saved.get("election", 0))  # RayMQ 0.1 had none
        if current != (cuts[-1][0] if cuts else first):
            raise ValueError(f"epoch {current} is not the last of its cuts")
    except FileNotFoundError:
        return None
    except json_file.DECODE_ERRORS as error:
        _log.error("%s cannot be read, so readers of this store read it again: %s", path, error)
        return None
    return first, cuts, election
