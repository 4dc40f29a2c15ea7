"""The clock for leases, locks, memberships and time-outs between machines.

It also counts while the machine sleeps, which `time.monotonic` does not: a process that wakes up after an hour must not
use a lease of one minute as still valid. Nobody can set this clock, so steps of the wall clock do not change the
durations that it measures. It restarts when the machine starts: use wall time for longer durations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return the seconds since the machine started, including those asleep. Any thread."""
    return time.clock_gettime(_BOOTTIME)


def wall_ms() -> int:
    """Return the wall time in ms since the epoch. Any thread."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Return the id of the machine start from which `boottime` counts.

    The id differs after each start; it is "" if the kernel does not provide one.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class SteadyClock:
    """Wall time at construction, advanced by the machine's elapsed time, in seconds. Any thread.

    Use it for waits that are stored with the time at which they end: a step of the wall clock neither shortens nor
    prolongs them. A new process starts from the wall clock at that time.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = boottime) -> None:
        self._elapsed = elapsed
        self._began = wall() - elapsed()

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self._began + self._elapsed()

    def next_ms(self) -> int:
        """Return the millisecond that begins next.

        A wait that starts at this millisecond is long enough by the wall clock, too.
        """
        return int(self() * 1000) + 1
