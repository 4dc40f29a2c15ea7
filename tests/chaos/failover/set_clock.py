"""A machine's clock as a process finds it, which somebody else sets while it runs. It imports nothing of ours."""

from __future__ import annotations

import time


class SetClock:
    """The clock of the wall, which `step` sets forward or back; that which nobody can set goes on as it does.

    `install` comes before anything is imported that keeps one of these functions.
    """

    def __init__(self) -> None:
        self._ahead_ns = 0
        self._time_ns, self._gettime = time.time_ns, time.clock_gettime

    def install(self) -> None:
        time.time_ns = self.time_ns
        time.time = self.time
        time.clock_gettime = self.clock_gettime

    def step(self, seconds: float) -> None:
        """Set it; 0.0 sets it right."""
        self._ahead_ns = int(seconds * 1e9)

    def time_ns(self) -> int:
        return self._time_ns() + self._ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def clock_gettime(self, clock: int) -> float:
        return self.time() if clock == time.CLOCK_REALTIME else self._gettime(clock)
