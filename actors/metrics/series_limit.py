"""Decide which topics and groups have series of their own. No I/O.

A broker may have 10,000 topics, and Prometheus pays for each series. The largest subjects get series of their own as
far as a budget allows. All others are added up as "other".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)

#: The most series of one broker.
MAX_SERIES: Final = 5_000
#: The label of the subjects without series of their own.
OTHER: Final = "other"


def largest(sizes: Mapping[_Key, float], most: int) -> set[_Key]:
    """Return the keys of the `most` largest sizes; of equal sizes those that are first as text."""
    if len(sizes) <= most:
        return set(sizes)
    return {key for key, _ in sorted(sizes.items(), key=lambda item: (-item[1], str(item[0])))[: max(0, most)]}


class OtherCounter(Generic[_Key]):
    """The sum of counters that have no series of their own. It never falls.

    A counter that moves to "other" counts there from then on.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._last: dict[_Key, float] = {}
        self._named: set[_Key] = set()

    def update(self, counts: Iterable[tuple[_Key, float]], named: set[_Key]) -> float:
        """Add what the counters outside of `named` have counted since the last call; return the sum."""
        last: dict[_Key, float] = {}
        for key, count in counts:
            if key in named:
                continue
            before = count if key in self._named else self._last.get(key, 0.0)
            self.total += max(0.0, count - before)
            last[key] = count
        self._last, self._named = last, named
        return self.total
