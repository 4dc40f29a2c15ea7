"""Count observed values by bucket, such as latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

#: Upper bounds of latencies in seconds, from a tenth of a millisecond to ten seconds.
LATENCY_BOUNDS_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
#: Observed values are sorted into the buckets together, once there are so many.
_PENDING: Final = 1_024


class Histogram:
    """The counts of observed values, by bucket, and their sum.

    A value belongs to the first bucket whose upper bound is not below it; the last bucket has no bound. To observe a
    value costs an append to a list; the values are sorted into their buckets when they are read. One thread observes
    and reads; if several do, a value may be lost or counted twice.
    """

    __slots__ = ("_counts", "_pending", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_SECONDS) -> None:
        """Create an empty histogram; the upper bounds of its buckets are ascending."""
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._pending: list[float] = []

    @classmethod
    def from_counts(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
        """Return a histogram of values that were counted elsewhere, of which `total` is the sum."""
        made = cls(bounds)
        made._counts, made._sum = list(counts), total
        return made

    def observe(self, value: float) -> None:
        """Count a value."""
        pending = self._pending
        pending.append(value)
        if len(pending) >= _PENDING:
            self._sort()

    def observe_times(self, value: float, times: int) -> None:
        """Count a value several times."""
        self._counts[int(np.searchsorted(self.bounds, value))] += times
        self._sum += value * times

    @property
    def counts(self) -> list[int]:
        """Return how many values are in each bucket."""
        self._sort()
        return self._counts

    @property
    def sum(self) -> float:
        """Return the sum of all values."""
        self._sort()
        return self._sum

    @property
    def count(self) -> int:
        """Return how many values were counted."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        """Return a histogram with the same counts, which does not change with this one."""
        return Histogram.from_counts(self.bounds, self.counts, self.sum)

    def _sort(self) -> None:
        if self._pending:
            values, self._pending = np.array(self._pending), []
            found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self._counts))
            self._counts = [before + int(more) for before, more in zip(self._counts, found, strict=True)]
            self._sum += float(values.sum())
