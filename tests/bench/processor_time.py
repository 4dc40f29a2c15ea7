"""What processes have had of the processors, exactly: a round of a benchmark takes few ticks of the clock."""

from __future__ import annotations

from pathlib import Path

import psutil


def processor_us(pid: int) -> float:
    """Processor time of a process so far, microseconds; of threads that have ended it may lack the time."""
    try:
        return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e3
    except (OSError, ValueError):  # not Linux, or a thread has just ended
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system) * 1e6
