"""Check whether histories of a compare-and-set register are linearizable.

An operation takes effect once between its beginning and its end; one with an unknown outcome takes effect at most once
after its beginning. The check tries the orders that this allows (Wing and Gong's search, with Lowe's memory of states
that led nowhere).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

#: The register before anything was written.
NOTHING: Final = ""


@dataclass(frozen=True)
class Read:
    """A read that returned `value`."""

    began: float
    ended: float
    value: str

    def after(self, state: str) -> str | None:
        return state if state == self.value else None


@dataclass(frozen=True)
class Changed:
    """A change from `before` to `value`; `ended` is infinite if the outcome is unknown."""

    began: float
    ended: float
    before: str
    value: str

    def after(self, state: str) -> str | None:
        return self.value if state == self.before else None


@dataclass(frozen=True)
class Conflicted:
    """A change that was refused because the value was not `before`."""

    began: float
    ended: float
    before: str

    def after(self, state: str) -> str | None:
        return state if state != self.before else None


Operation = Read | Changed | Conflicted


def is_linearizable(operations: Sequence[Operation], first: str = NOTHING) -> bool:
    """Return whether one order explains the operations, from the value `first` on."""
    ordered = sorted(operations, key=lambda each: each.began)
    required = sum(1 << index for index, each in enumerate(ordered) if each.ended < math.inf)
    seen: set[tuple[int, str]] = set()
    stack = [(0, first)]
    while stack:
        done, state = stack.pop()
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if done & required == required:
            return True
        for index in _next_candidates(ordered, done):
            after = ordered[index].after(state)
            if after is not None:
                stack.append((done | 1 << index, after))
    return False


def _next_candidates(ordered: Sequence[Operation], done: int) -> Iterator[int]:
    """Return the open operations that began before any other open one ended."""
    start = 0
    while done >> start & 1:
        start += 1
    latest = math.inf
    found = []
    for index in range(start, len(ordered)):
        if ordered[index].began > latest:
            break
        if not done >> index & 1:
            found.append(index)
            latest = min(latest, ordered[index].ended)
    return (index for index in found if ordered[index].began <= latest)


@dataclass(frozen=True)
class LeaseInterval:
    """The time in which a holder considered a lease its own."""

    holder: str
    begin: float
    until: float


def overlapping_leases(intervals: Sequence[LeaseInterval]) -> list[tuple[LeaseInterval, LeaseInterval]]:
    """Return the pairs that two different holders had at the same time."""
    ordered = sorted((each for each in intervals if each.until > each.begin), key=lambda each: each.begin)
    found = []
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.begin >= one.until:
                break
            if other.holder != one.holder:
                found.append((one, other))
    return found
