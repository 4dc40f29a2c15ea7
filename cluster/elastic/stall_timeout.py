"""The time-out of a change without progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: The seconds without progress after which a change fails. A replica with much to copy reports its shrinking lag, which
#: is progress.
STALL_TIMEOUT_SECONDS: Final = 600.0


class StallTimeout:
    """The stall time-out of one change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create a time-out; `clock` is a monotonic clock in seconds."""
        self._clock = clock
        self._why = ""
        self._since = 0.0

    def has_expired(self, why: str) -> bool:
        """Return True if exactly this reason has blocked the change for too long."""
        if why != self._why:
            self._why, self._since = why, self._clock()
        return self._clock() - self._since >= STALL_TIMEOUT_SECONDS

    def reset(self) -> None:
        """Record that nothing blocks the change now."""
        self._why = ""
