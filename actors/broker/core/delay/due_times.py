"""Determine when the entries of one delay level are due. No I/O.

An entry has its due time by the clock of the broker that stored it. If that is further ahead than the whole delay of
its level, the clock was set back since, or was ahead then; then it is unknown how long the message has waited. It must
not be delivered early, so it waits its whole delay from the time when this is noticed, together with all later entries
that exist then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class DueTimes:
    """The due times of one level."""

    #: Entries before this offset are due at most a whole delay after `_seen_ms`.
    _seen_to: int = 0
    _seen_ms: int = 0

    def of(self, begin: int, stored_due_ms: _Int64s, delays_ms: _Int64s, end: int, now_ms: int) -> _Int64s:
        """Return when the entries from offset `begin` on are due.

        Args:
            stored_due_ms: their stored due times.
            delays_ms: how long each waits, by the table of levels under which it was stored.
            end: the end of their queue.
        """
        if (begin >= self._seen_to or self._seen_ms > now_ms) and (stored_due_ms > now_ms + delays_ms).any():
            self._seen_to, self._seen_ms = end, now_ms
        if begin >= self._seen_to:
            return stored_due_ms
        seen = np.arange(begin, begin + len(stored_due_ms)) < self._seen_to
        return np.where(seen, np.minimum(stored_due_ms, self._seen_ms + delays_ms), stored_due_ms)
