"""Measure how much slower a machine is because of other work, which makes every pause longer.

A thread does a little work repeatedly, and compares its elapsed time with its processor time.
"""

from __future__ import annotations

import threading
import time
from statistics import fmean
from typing import Final

_EVERY_SECONDS: Final = 0.25
_WORK_SECONDS: Final = 0.004


class SlowdownSampler:
    """Sample from construction until `stop`."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        threading.Thread(target=self._look, name="crowding", daemon=True).start()

    def stop(self) -> None:
        """End sampling."""
        self._stopped.set()

    def slowdown(self, began: float, ended: float) -> float:
        """Return the mean slowdown between two moments; 1.0 without samples."""
        return fmean([times for at, times in self._samples if began <= at <= ended] or [1.0])

    def _look(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            began, used = time.monotonic(), time.thread_time()
            while time.thread_time() - used < _WORK_SECONDS:
                pass
            ended = time.monotonic()
            self._samples.append((ended, (ended - began) / (time.thread_time() - used)))
