"""A process's view of the machine's clock, which a fault sets at runtime. Imports no RayMQ module."""

from __future__ import annotations

import time


class SetClock:
    """A wall clock that `step` sets forward or back; the monotonic clock is unchanged.

    `install` must precede the import of modules that keep one of these functions.
    """

    def __init__(self) -> None:
        self._ahead_ns = 0
        self._time_ns, self._gettime = time.time_ns, time.clock_gettime

    def install(self) -> None:
        time.time_ns = self.time_ns
        time.time = self.time
        time.clock_gettime = self.clock_gettime

    def step(self, seconds: float) -> None:
        """Set the offset; 0.0 sets the right time."""
        self._ahead_ns = int(seconds * 1e9)

    def time_ns(self) -> int:
        return self._time_ns() + self._ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def clock_gettime(self, clock: int) -> float:
        return self.time() if clock == time.CLOCK_REALTIME else self._gettime(clock)
