"""Decide how long a thread polls for an answer before it sleeps; no I/O.

Waking a sleeping thread costs 20 to 60 us if its processor has gone to sleep as well, which is as much as a small
request takes as a whole. So it pays to poll for the answer, as locks spin before they put a thread to sleep. It pays
only if answers arrive that soon: after a few late answers, polling is tried less and less often.
"""

from __future__ import annotations

import math
from typing import Final

#: The longest time of one spin, in seconds.
SPIN_SECONDS: Final = 1e-4
#: After so many late answers in a row, requests begin to skip spinning.
_PATIENCE: Final = 3
_FEWEST_WITHOUT: Final = 16
_MAX_WITHOUT: Final = 1024


class AdaptiveSpin:
    """The spin decisions of one connection. Used by one thread at a time."""

    def __init__(self, processors: int) -> None:
        """Create it for a machine with so many processors.

        With a single processor it never spins, because the spinning thread would keep the server from answering.
        """
        self._late = 0
        self._without = 0
        self._left_without: float = 0 if processors > 1 else math.inf

    def should_spin(self) -> bool:
        """Return True if the caller should spin for the next answer.

        The caller must call `record_wait` afterwards.
        """
        if self._left_without:
            self._left_without -= 1
            return False
        return True

    def record_wait(self, *, in_time: bool) -> None:
        """Record whether the answer arrived within `SPIN_SECONDS`."""
        if in_time:
            self._late = self._without = 0
            return
        self._late += 1
        if self._late >= _PATIENCE:
            self._without = min(_MAX_WITHOUT, 2 * self._without or _FEWEST_WITHOUT)
            self._left_without = self._without
