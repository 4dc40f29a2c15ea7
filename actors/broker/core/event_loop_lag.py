"""Measure how long a broker's event loop was blocked. No I/O.

Every client of the broker waits at least as long as its event loop is blocked. A timer is due every `PROBE_SECONDS`,
less often while the broker has little to do. How late it fires is how long the loop was busy with one thing, or without
the interpreter or the processor. A stop is measured too short by at most the interval between two timers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: The interval of the probe's timer.
PROBE_SECONDS: Final = 0.01
#: A stop longer than this is counted in `long_count`.
LONG_SECONDS: Final = 0.02
#: `recent` covers the last one to two windows.
WINDOW_SECONDS: Final = 10.0


class EventLoopLag:
    """The lag of one event loop. `clock` is monotonic, in seconds.

    Attributes:
        longest: the longest stop so far, in seconds.
        long_count: how many stops were longer than `LONG_SECONDS`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: float | None = None
        self._window_ends = clock() + WINDOW_SECONDS
        self._in_window = self._before = 0.0
        self.longest = 0.0
        self.long_count = 0

    def beat(self, seconds: float = PROBE_SECONDS) -> None:
        """Record that the timer fired; call it again `seconds` later."""
        now = self._clock()
        late = 0.0 if self._due is None else max(0.0, now - self._due)
        self._due = now + seconds
        self._turn(now)
        self.longest = max(self.longest, late)
        self._in_window = max(self._in_window, late)
        self.long_count += late > LONG_SECONDS

    @property
    def recent(self) -> float:
        """Return the longest stop of the last ten to twenty seconds, in seconds."""
        self._turn(self._clock())
        return max(self._before, self._in_window)

    def _turn(self, now: float) -> None:
        if now >= self._window_ends:
            whole = now < self._window_ends + WINDOW_SECONDS
            self._before, self._in_window = self._in_window if whole else 0.0, 0.0
            self._window_ends = now + WINDOW_SECONDS
