"""Choose the record where the next opening begins to walk the log.

Everything before the last checkpoint is on disk in log, queues and index, so the walk could begin there. It begins
earlier, so that damage of the newest records, which are read the most, is found by recovery and not by readers. It does
not begin with the file's first record, because a file may hold millions.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: The least part of the log before the last checkpoint that is walked, as far as the checkpoint's file has it, ...
MIN_RECHECK_BYTES: Final = 64 << 20
#: ... and the most that may be added to it, unless more was written between two checkpoints.
_APART_BYTES: Final = 4 << 20


class RecoveryStart:
    """Positions where records begin, oldest first; one thread at a time."""

    def __init__(self, first: int) -> None:
        self._places = deque([first])

    def note(self, place: int) -> None:
        """Add a position where a record begins or will begin; positions must ascend.

        Positions less than 4 MiB behind the last one are skipped.
        """
        if place >= self._places[-1] + _APART_BYTES:
            self._places.append(place)

    def before(self, end: int) -> int:
        """Return where to begin if everything before `end` is on disk; `end` only grows."""
        while len(self._places) > 1 and self._places[1] <= end - MIN_RECHECK_BYTES:
            self._places.popleft()
        return self._places[0]
