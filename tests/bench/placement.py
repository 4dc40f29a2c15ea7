"""Client and server each on a core of its own, for measurements of one call at a time.

Left to itself the scheduler puts such a pair onto one core in one run, where waking the other one costs next to
nothing, and onto two in the next, where it costs waking an idle core twice: a factor of two to three, for every system,
and it stays so for seconds. Apart is how they run where there are more cores than work, or more machines than one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def apart(server: int) -> Iterator[None]:
    """Meanwhile the calling thread is on the first core, and the process `server` with its threads on the last one."""
    threads = list(map(int, os.listdir(Path("/proc", str(server), "task"))))
    os.sched_setaffinity(0, _CORES[:1])
    for thread in threads:
        os.sched_setaffinity(thread, _CORES[-1:])
    try:
        yield
    finally:
        for thread in (0, *threads):
            os.sched_setaffinity(thread, _CORES)
