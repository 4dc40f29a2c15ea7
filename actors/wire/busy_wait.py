"""How long a thread stays awake that waits for an answer. No I/O.

Waking a thread that sleeps costs 20 to 60 us where its processor has gone to sleep with it, as much as a small request
takes as a whole; so it pays to ask again and again whether the answer is there, as locks do before they put a thread
to sleep. It pays only where answers come that soon: after a few that did not it is tried less and less often.
"""

from __future__ import annotations

import math
from typing import Final

#: No longer than that at a time, in seconds.
AWAKE_SECONDS: Final = 1e-4
#: So many answers in a row may take longer before requests begin to go without.
_PATIENCE: Final = 3
_FEWEST_WITHOUT: Final = 16
_MOST_WITHOUT: Final = 1024


class Alertness:
    """Of the requests on one connection. Used by one thread at a time."""

    def __init__(self, processors: int) -> None:
        """With a single processor it is never worth it: who stays awake keeps the server from answering."""
        self._late = 0
        self._without = 0
        self._left_without: float = 0 if processors > 1 else math.inf

    def is_worth_it(self) -> bool:
        """Whether to stay awake for the next answer; then `came` must follow."""
        if self._left_without:
            self._left_without -= 1
            return False
        return True

    def came(self, *, in_time: bool) -> None:
        """Whether the answer was there within `AWAKE_SECONDS`."""
        if in_time:
            self._late = self._without = 0
            return
        self._late += 1
        if self._late >= _PATIENCE:
            self._without = min(_MOST_WITHOUT, 2 * self._without or _FEWEST_WITHOUT)
            self._left_without = self._without
