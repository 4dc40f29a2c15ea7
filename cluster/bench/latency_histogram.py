"""Percentiles of any number of durations in little memory. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

#: The upper bound of a bucket is this many times its lower bound, which bounds the error of a percentile to 1 %.
_FACTOR: Final = 1.01
_LEAST_SECONDS: Final = 1e-6


class LatencyHistogram:
    """Counts durations in buckets of equal relative width. Used on one thread at a time."""

    def __init__(self) -> None:
        #: By bucket, how many durations it has.
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration."""
        bucket = math.ceil(math.log(max(seconds, _LEAST_SECONDS) / _LEAST_SECONDS, _FACTOR))
        self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.count += times
        self.longest = max(self.longest, seconds)

    def merge(self, others: Iterable[LatencyHistogram]) -> None:
        """Add the counts of other histograms."""
        for other in others:
            for bucket, times in other.buckets.items():
                self.buckets[bucket] = self.buckets.get(bucket, 0) + times
            self.count += other.count
            self.longest = max(self.longest, other.longest)

    def percentile(self, percent: float) -> float | None:
        """Return the duration in seconds that so many percent do not exceed; None without any."""
        if not self.count:
            return None
        rank, seen = math.ceil(self.count * percent / 100), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(self.longest, _LEAST_SECONDS * _FACTOR**bucket)
        return self.longest

    def summary(self) -> dict[str, float | None]:
        """Return the usual percentiles and the longest duration, in seconds."""
        named = {f"p{percent:g}": self.percentile(percent) for percent in (50, 99, 99.9)}
        return {**named, "max": self.longest if self.count else None}
