"""Keep the figures of the last hour in memory, and compute rates from counters.

Nothing here does I/O: times are arguments, so that tests need no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from raymq.client import MessageQueue

#: A time in seconds since 1970 and a value; None where the value was not known.
Point = tuple[float, float | None]

SPAN_SECONDS: Final = 3_600.0
#: The distance of two samples of the cluster.
EVERY_SECONDS: Final = 5.0


class FigureSeries:
    """The points of one figure, oldest first, of the last `span` seconds."""

    def __init__(self, span: float = SPAN_SECONDS, every: float = EVERY_SECONDS) -> None:
        self._span = span
        self._points: deque[Point] = deque(maxlen=int(span / every) + 1)

    def add(self, at: float, value: float | None) -> None:
        """Add a point, and drop those that are older than the span."""
        if self._points and at <= self._points[-1][0]:
            return  # The clock went back: keep the order.
        self._points.append((at, value))
        while self._points[0][0] < at - self._span:
            self._points.popleft()

    @property
    def points(self) -> list[Point]:
        """Return all points, oldest first."""
        return list(self._points)

    @property
    def newest(self) -> float | None:
        """Return the newest value; None if it is not known."""
        return self._points[-1][1] if self._points else None

    @property
    def newest_at(self) -> float | None:
        """Return the time of the newest point; None if there is none."""
        return self._points[-1][0] if self._points else None


class FigureHistory:
    """The series of all figures by name, such as ("lag", "my-group").

    A series without a new point within the span is dropped.
    """

    def __init__(self, span: float = SPAN_SECONDS, every: float = EVERY_SECONDS) -> None:
        self._span = span
        self._every = every
        self._series: dict[tuple[str, ...], FigureSeries] = {}

    def add(self, name: tuple[str, ...], at: float, value: float | None) -> None:
        """Add a point to a series, which is created if there is none."""
        self._series.setdefault(name, FigureSeries(self._span, self._every)).add(at, value)

    def points(self, *name: str) -> list[Point]:
        """Return the points of a series; empty if there is none."""
        series = self._series.get(name)
        return [] if series is None else series.points

    def newest(self, *name: str) -> float | None:
        """Return the newest value of a series; None if it is not known."""
        series = self._series.get(name)
        return None if series is None else series.newest

    def names(self, kind: str) -> list[tuple[str, ...]]:
        """Return the names of all series of a kind, sorted."""
        return sorted(name for name in self._series if name[0] == kind)

    def drop_old(self, now: float) -> None:
        """Drop the series without a point within the span."""
        for name, series in list(self._series.items()):
            if (series.newest_at or 0.0) < now - self._span:
                del self._series[name]


class CounterRate:
    """The rate of the counters of one topic or group between the last two readings."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._counts: Mapping[MessageQueue, int] = {}

    def read(self, at: float, counts: Mapping[MessageQueue, int]) -> float | None:
        """Return the sum of the queues' rates per second since the last reading.

        Queues that only one of the two readings has are left out: what a broker that was away has counted meanwhile is
        not of this time.

        None for the first reading, without common queues, and where a counter went back: the topic was created anew,
        or offsets were reset.
        """
        before_at, before = self._at, self._counts
        self._at, self._counts = at, counts
        steps = [count - before[queue] for queue, count in counts.items() if queue in before]
        if before_at is None or at <= before_at or not steps or min(steps) < 0:
            return None
        return sum(steps) / (at - before_at)


class SampleRotation:
    """Chooses which names are sampled next, so that a sample has a bounded cost.

    Every name is chosen in turn; new names come at their place in the alphabet.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._after = ""

    def next(self, names: list[str]) -> list[str]:
        """Return the next names of this sorted list, at most the budget."""
        if len(names) <= self._budget:
            return names
        chosen = list(self._from(names, self._after))[: self._budget]
        self._after = chosen[-1]
        return chosen

    @staticmethod
    def _from(names: list[str], after: str) -> Iterator[str]:
        yield from (name for name in names if name > after)
        yield from (name for name in names if name <= after)
