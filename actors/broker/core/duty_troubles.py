"""A periodic duty that fails: when it is tried again, and what is said of it. Decisions only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.storage.errors import StoreError

#: A duty that the disk's state keeps from its work is tried again after at most so many seconds.
LONGEST_SECONDS: Final = 10.0
#: The first wait of a part of a duty that failed.
FIRST_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows a failure.

    Attributes:
        wait: seconds until the next try.
        line: what is logged; None: nothing.
        in_full: with the traceback: nobody expected it.
    """

    wait: float
    line: str | None
    in_full: bool = False


@dataclass(slots=True)
class DutyTroubles:
    """One duty's, of so many seconds between two turns.

    What the store refuses (a full disk, one that failed, no descriptor) is a state that lasts: the duty waits longer
    from try to try. Anything else is a fault of ours, which says nothing of the next turn. Either is logged the first
    time that it comes, and of the same again the 2nd, 4th, 8th ... time.
    """

    name: str
    seconds: float
    _in_a_row: int = 0
    _last: str = ""
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        longest = max(self.seconds, LONGEST_SECONDS)
        self._backoff = Backoff(first=self.seconds, factor=2.0, jitter=0.0, cap=longest)

    def failed(self, error: Exception) -> Verdict:
        """A turn has failed."""
        lasts = isinstance(error, StoreError)
        kind = type(error).__name__
        if kind != self._last:
            self.succeeded()
        self._last = kind
        self._in_a_row += 1
        wait = self._backoff.next_delay() if lasts else self.seconds
        if self._in_a_row & (self._in_a_row - 1):
            return Verdict(wait, None)
        times = "" if self._in_a_row == 1 else f" for the {self._in_a_row}th time"
        return Verdict(wait, f"{self.name} failed{times}: {str(error) or kind}", in_full=not lasts)

    def succeeded(self) -> None:
        """A turn went well."""
        if self._in_a_row:
            self._in_a_row = 0
            self._last = ""
            self._backoff.reset()


@dataclass(slots=True)
class PartTroubles:
    """What one duty has to do for each of many, such as the delay levels: one's trouble is not that of the others.

    A part that failed has its next turn later from failure to failure, so that a loop which goes round twenty times a
    second does not spend its time on it, and it is logged as `DutyTroubles` says. `clock` is seconds.
    """

    clock: Callable[[], float]
    _failing: dict[Hashable, tuple[DutyTroubles, Backoff, float]] = field(default_factory=dict)

    def rests(self, part: Hashable) -> bool:
        """Whether it has failed, and its next turn is not yet."""
        known = self._failing.get(part)
        return known is not None and self.clock() < known[2]

    def failed(self, part: Hashable, name: str, error: Exception, log: logging.Logger) -> None:
        """Its turn has failed; `name` is what the log calls it."""
        known = self._failing.get(part)
        if known is None:
            backoff = Backoff(first=FIRST_SECONDS, factor=2.0, jitter=0.0, cap=LONGEST_SECONDS)
            troubles = DutyTroubles(name, FIRST_SECONDS)
        else:
            troubles, backoff, _ = known
        self._failing[part] = troubles, backoff, self.clock() + backoff.next_delay()
        verdict = troubles.failed(error)
        if verdict.line is not None:
            log.error("%s; it is tried again", verdict.line, exc_info=error if verdict.in_full else None)

    def succeeded(self, part: Hashable) -> None:
        """Its turn went well."""
        if self._failing:
            self._failing.pop(part, None)

    def forget_all_but(self, parts: Container[Hashable]) -> None:
        """The others are gone."""
        for part in [part for part in self._failing if part not in parts]:
            del self._failing[part]
