"""When the entries of one delay level are due: what their queue says, unless it cannot be. No I/O.

An entry says when it is due by the clock of the broker that stored it. If that is further off than the whole delay of
its level, the clock was set back since, or was ahead then; how long the message has waited nobody can know. It must not
come early, so it waits its whole delay from when it is seen, together with all that are behind it by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class DueTimes:
    """One level."""

    #: Entries before this offset are due a whole delay behind that time at the latest.
    _seen_to: int = 0
    _seen_ms: int = 0

    def of(self, begin: int, told_ms: _Int64s, delays_ms: _Int64s, end: int, now_ms: int) -> _Int64s:
        """When entries from offset `begin` on are due.

        Args:
            told_ms: what they say.
            delays_ms: how long each waits, by the table of levels that it was stored under.
            end: where their queue ends.
        """
        if (begin >= self._seen_to or self._seen_ms > now_ms) and (told_ms > now_ms + delays_ms).any():
            self._seen_to, self._seen_ms = end, now_ms
        if begin >= self._seen_to:
            return told_ms
        seen = np.arange(begin, begin + len(told_ms)) < self._seen_to
        return np.where(seen, np.minimum(told_ms, self._seen_ms + delays_ms), told_ms)
