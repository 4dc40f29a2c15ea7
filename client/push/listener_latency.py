"""Decide whether a listener is quick enough to be called on the loop's thread.

No I/O, injected clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.backoff import Backoff

#: The longest duration of a quick call.
QUICK_SECONDS: Final = 1e-3
#: The usual duration is averaged over about this many calls.
_AVERAGED: Final = 16
#: After this many quick calls in a row, the pause after a slow call starts at its shortest again.
STREAK: Final = 1_000


class ListenerLatency:
    """A prediction of the next call's duration from the calls so far.

    `clock` is monotonic seconds. Any thread may use it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._streak = 0
        self._usual_seconds = 0.0
        self._not_before = 0.0
        self._respite = Backoff(first=0.25, factor=2.0, cap=60.0)

    def took(self, seconds: float) -> None:
        """Record the duration of a call.

        After a slow call no call counts as quick for a while, longer each time.
        """
        if seconds > QUICK_SECONDS:
            self._streak = 0
            self._not_before = self._clock() + self._respite.next_delay()
            return
        self._streak += 1
        self._usual_seconds += (seconds - self._usual_seconds) / _AVERAGED
        if self._streak == STREAK:
            self._respite.reset()

    @property
    def is_quick(self) -> bool:
        """Return True if the next call is expected to be quick.

        That is so if the last call was quick and no slow call was shortly before.
        """
        return self._streak > 0 and self._clock() >= self._not_before

    def quick_calls(self, seconds: float) -> int:
        """Return how many calls should take `seconds` together; 1 after slow calls."""
        return max(1, int(seconds / max(self._usual_seconds, 1e-7))) if self.is_quick else 1
