"""A disk that is full or fails for a while, by random calls."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

from tests.faulty_calls import FaultyCalls, UnsyncedCalls


class FailingDisk(FaultyCalls):
    """Real calls without syncs, of which some kinds fail at random for lack of space.

    Attributes:
        chance: the probability that such a call fails; 0.0: never.
        state_chance: the probability that a sync of the state journal fails, although all of it is written.
    """

    def __init__(self, seed: int, *kinds: str) -> None:
        super().__init__(real=UnsyncedCalls())
        self._random = random.Random(seed)  # of its own, as threads of the store make calls, too
        self._kinds = kinds
        self.chance = self.state_chance = 0.0

    def heal(self) -> None:
        """End all failures."""
        self.chance = self.state_chance = 0.0

    def _count(self, kind: str, subject: object) -> bool:
        if kind in self._kinds and self.chance and self._random.random() < self.chance:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(subject))
        is_state = kind == "fdatasync" and "/raymq/state/" in str(Path(f"/proc/self/fd/{subject}").readlink())
        if is_state and self._random.random() < self.state_chance:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(subject))
        return False
