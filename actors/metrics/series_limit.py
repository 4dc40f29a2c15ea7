"""Decide which topics and groups have series of their own. No I/O.

A broker may have 10,000 topics, and Prometheus pays for each series. The largest subjects get series of their own as
far as a budget allows. All others are added up under the label `OTHER`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from heapq import nlargest
from typing import Final, Generic, TypeVar

from raymq.storage.cooperative_steps import Steps

_Key = TypeVar("_Key", bound=Hashable)

#: The most series of one broker.
MAX_SERIES: Final = 5_000
#: The label of the subjects without series of their own; no topic and no group can have that name.
OTHER: Final = "(other)"
_AT_ONCE: Final = 1_000


def largest(sizes: Mapping[_Key, float], most: int) -> set[_Key]:
    """Return the keys of the `most` largest sizes; of equal sizes the first ones."""
    if len(sizes) <= most:
        return set(sizes)
    return set(nlargest(max(0, most), sizes, key=sizes.__getitem__))


class OtherCounter(Generic[_Key]):
    """The sum of counters that have no series of their own. It never falls.

    A counter that moves to "other" counts there from then on.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._last: dict[_Key, float] = {}
        self._named: Collection[_Key] = ()

    def update_steps(self, counts: Mapping[_Key, float], named: set[_Key]) -> Steps[float]:
        """Add what the counters outside of `named` have counted since the last call, in steps.

        Return the sum.
        """
        last: dict[_Key, float] = {}
        if len(named) < len(counts):
            for number, (key, count) in enumerate(counts.items(), 1):
                if key not in named:
                    before = count if key in self._named else self._last.get(key, 0.0)
                    self.total += max(0.0, count - before)
                    last[key] = count
                if number % _AT_ONCE == 0:
                    yield None
        self._last, self._named = last, named
        return self.total
