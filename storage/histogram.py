"""Count observed values by bucket, such as latencies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: Upper bounds of latencies in seconds, from a tenth of a millisecond to ten seconds.
LATENCY_BOUNDS_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)


class Histogram:
    """The counts of observed values, by bucket, and their sum.

    A value belongs to the first bucket whose upper bound is not below it; the last bucket has no bound. Values may be
    observed on several threads: then one in a million may be lost.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_SECONDS) -> None:
        """Create an empty histogram; the upper bounds of its buckets are ascending."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Return how many values were counted."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        """Return a histogram with the same counts, which does not change with this one."""
        copied = Histogram(self.bounds)
        copied.counts, copied.sum = self.counts.copy(), self.sum
        return copied

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
