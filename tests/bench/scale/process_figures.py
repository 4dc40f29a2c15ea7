"""What a process holds and uses, read from /proc."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench.processor_time import processor_us

_KIB_OF = {"RssAnon": "memory of its own", "RssFile": "mapped, of files", "RssShmem": "mapped, shared"}


def memory_mib(pid: int) -> dict[str, float]:
    """What is resident, by what it is: the first is gone with the process, the others are the kernel's cache."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _KIB_OF:
            found[_KIB_OF[name]] = int(value.split()[0]) / 1024
    return found


def descriptors(pid: int) -> int:
    """Open files and sockets."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def mappings(pid: int) -> int:
    """Parts of the address space: of a process there may be vm.max_map_count."""
    with Path(f"/proc/{pid}/maps").open() as lines:
        return sum(1 for _ in lines)


def processor_us_a_second(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """What each process uses of the processors while this one sleeps: microseconds a second."""
    before = {name: processor_us(pid) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: (processor_us(pid) - before[name]) / took for name, pid in pids.items()}
