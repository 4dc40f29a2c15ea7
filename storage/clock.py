"""The clock of everything that lasts for a time: leases, locks, memberships, time-outs between machines.

It counts also while the machine sleeps, which `time.monotonic` does not: who wakes up after an hour must not take a
lease of a minute for its own. Nobody sets it, so no step of the wall clock shortens or lengthens what it measures. It
begins anew when the machine starts: what has to last longer is wall time.
"""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since the machine started, those that it slept included. Any thread."""
    return time.clock_gettime(_BOOTTIME)
