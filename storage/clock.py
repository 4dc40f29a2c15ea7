"""The clock of everything that lasts for a time: leases, locks, memberships, time-outs between machines.

It counts also while the machine sleeps, which `time.monotonic` does not: who wakes up after an hour must not take a
lease of a minute for its own. Nobody sets it, so no step of the wall clock shortens or lengthens what it measures. It
begins anew when the machine starts: what has to last longer is wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since the machine started, those that it slept included. Any thread."""
    return time.clock_gettime(_BOOTTIME)


def wall_ms() -> int:
    """Wall time, in ms since the epoch. Any thread."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Which start of the machine `boottime` counts from: another text after each; "" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class SteadyClock:
    """Wall time as it was when this was made, going on as the machine's time does: seconds. Any thread.

    What waits for a while, and is written down with the time at which it is over, goes by this: a step of the wall
    clock neither ends it early nor holds it up. A new process begins with the wall clock as it is then.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = boottime) -> None:
        self._elapsed = elapsed
        self._began = wall() - elapsed()

    def __call__(self) -> float:
        """Now."""
        return self._began + self._elapsed()

    def next_ms(self) -> int:
        """The millisecond that begins next: what waits from then on waits long enough by the wall clock, too."""
        return int(self() * 1000) + 1
