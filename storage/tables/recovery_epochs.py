"""Recovery epochs: show a reader whether the log was truncated since it last read.

A machine crash can lose records that were appended and not flushed, and their offsets are given to other messages. So
an opening that may have found less than was read begins a new *epoch*. Before anything can be appended, it records
where the log was truncated. A reader sends the epoch under which it read. The answer is the position from which it has
to read again: the smallest truncation of all later epochs.

In a group of replicas, the elected leader may lack records that readers have received. It begins a new epoch where its
log ends, once for each such election. A successor does this if the elected leader did not.

An epoch is a random number, so that no epoch is used twice if the table is lost or restored from a backup. An epoch
that is not known here belongs to an unknown past, and nothing that was read under it is reliable.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import ClassVar, Final

from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The number of latest truncations that are kept.
_CUTS: Final = 64
#: The upper limit of epochs, which are also above 0: a reader without an epoch sends 0.
_LIMIT: Final = 1 << 62


class RecoveryEpochs(JournaledTable):
    """The recovery epochs of one directory.

    Events: [oldest known epoch, [[epoch, log end at which it began], ...], election].

    Only the opening of a store changes them; any thread may read them.

    Attributes:
        truncated_at_open: where this opening, or the election before it, truncated the log; None if neither did.
        election: the newest election (its leader's epoch) for which a new epoch was begun; 0: none.
    """

    NUMBER: ClassVar = 15
    COPIES: ClassVar = 2

    def __init__(self) -> None:
        self.truncated_at_open: int | None = None
        #: 0 before `beginning` was applied.
        self._first = 0
        self._cuts: list[tuple[int, int]] = []
        self.election = 0

    @property
    def is_begun(self) -> bool:
        """Return True if there is an epoch; the table is empty else."""
        return self._first > 0

    @property
    def current(self) -> int:
        """Return the newest epoch."""
        return self._cuts[-1][0] if self._cuts else self._first

    def beginning(self) -> Fields:
        """Return the event of a first epoch, in which readers begin anew."""
        return _new_epoch(), [], self.election

    def cut(self, log_end: int, election: int = 0) -> None:
        """Begin a new epoch at `log_end`, durably; later records may be lost.

        Raise StoreFull or StoreFailed if it cannot be written.

        Args:
            election: the election that caused the loss; 0: none.
        """
        first, cuts = self._first, [*self._cuts, (_new_epoch(), log_end)]
        while len(cuts) > _CUTS:
            first, _ = cuts.pop(0)
        self.record_durably((first, cuts, max(self.election, election)))
        self.note_truncation(log_end)

    def note_truncation(self, log_end: int) -> None:
        """Lower `truncated_at_open` to an earlier truncation of the log."""
        known = self.truncated_at_open
        self.truncated_at_open = log_end if known is None else min(known, log_end)

    def truncated_since(self, epoch: int) -> int | None:
        """Return up to where the log is unchanged since `epoch`.

        None means all of it. An epoch that is not known here returns 0.
        """
        epochs = [self._first, *(begun for begun, _ in self._cuts)]
        if epoch not in epochs:
            return 0
        return min((log_end for _, log_end in self._cuts[epochs.index(epoch) :]), default=None)

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        first, cuts, election = fields
        known = [(int(epoch), int(log_end)) for epoch, log_end in cuts]
        if not all(0 < epoch < _LIMIT and log_end >= 0 for epoch, log_end in [(int(first), 0), *known]):
            raise ValueError("no epochs, or no positions of a log")
        self._first, self._cuts, self.election = int(first), known, int(election)

    def snapshot(self) -> Iterator[Fields]:
        """Return one event with all epochs."""
        if self.is_begun:
            yield self._first, self._cuts, self.election


def _new_epoch() -> int:
    return 1 + secrets.randbelow(_LIMIT - 1)
