"""Client and server each on a core of its own, for measurements of one call at a time.

Left to itself the scheduler puts such a pair onto one core in one run, where waking the other one costs next to
nothing, and onto two in the next, where it costs waking an idle core twice: a factor of two to three, for every system,
and it stays so for seconds. Apart is how they run where there are more cores than work, or more machines than one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def apart(server: int, others: Iterable[int] = ()) -> Iterator[None]:
    """Meanwhile the calling thread is on the first core, and the process `server` with its threads on the last one.

    Args:
        others: processes that wait for the server as the caller does, and are on the first core, too: where one works
            while the others wait, nobody takes anybody's time.
    """
    placed = {0: _CORES[:1]}
    for process, cores in ((server, _CORES[-1:]), *((other, _CORES[:1]) for other in others)):
        placed |= dict.fromkeys(map(int, os.listdir(Path("/proc", str(process), "task"))), cores)
    try:
        _place(placed)
        yield
    finally:
        _place(dict.fromkeys(placed, _CORES))


def _place(placed: Mapping[int, Sequence[int]]) -> None:
    for thread, cores in placed.items():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, cores)
