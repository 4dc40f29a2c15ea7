"""Where the next opening begins to walk the log: where a record begins, a good way before what is surely on disk.

All before the last checkpoint is on disk in log, queues and index, so the walk could begin there. It begins earlier, so
that damage of the newest records, which are read the most, is found at once and not by who reads them; but not with
the file's first record, for a file may hold millions.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: So much of the log before the last checkpoint is walked at least, as far as the file in which that lies has it, ...
WALKED_BYTES: Final = 64 << 20
#: ... and so much more at most, unless more was written between two checkpoints.
_APART_BYTES: Final = 4 << 20


class WalkStart:
    """Places where records begin, oldest first. One thread at a time."""

    def __init__(self, first: int) -> None:
        self._places = deque([first])

    def note(self, place: int) -> None:
        """A record begins there, or will; not before one that was noted earlier."""
        if place >= self._places[-1] + _APART_BYTES:
            self._places.append(place)

    def before(self, end: int) -> int:
        """Where to begin if all is on disk up to `end`, which only ever grows."""
        while len(self._places) > 1 and self._places[1] <= end - WALKED_BYTES:
            self._places.popleft()
        return self._places[0]
