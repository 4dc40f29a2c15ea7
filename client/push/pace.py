"""Whether a listener is so quick that the loop may wait for it. No I/O, injected clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.backoff import Backoff

#: A call is quick up to here.
QUICK_SECONDS: Final = 1e-3
#: So many quick calls in a row, and a slow one is a surprise again.
STREAK: Final = 1_000


class CallPace:
    """What the calls so far say of the next one. `clock` is monotonic seconds; any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._streak = 0
        self._not_before = 0.0
        self._respite = Backoff(first=0.25, factor=2.0, cap=60.0)

    def took(self, seconds: float) -> None:
        """A call took so long. After a slow one none counts as quick for a while, longer each time."""
        if seconds > QUICK_SECONDS:
            self._streak = 0
            self._not_before = self._clock() + self._respite.next_delay()
            return
        self._streak += 1
        if self._streak == STREAK:
            self._respite.reset()

    @property
    def is_quick(self) -> bool:
        """Whether the next call is expected to be quick: the last one was, and no slow one was shortly before."""
        return self._streak > 0 and self._clock() >= self._not_before
