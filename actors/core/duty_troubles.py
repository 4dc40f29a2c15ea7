"""A periodic duty that fails: when it is tried again, and what is said of it. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raymq.actors.core.backoff import Backoff
from raymq.storage.errors import StoreError

#: A duty that the disk's state keeps from its work is tried again after at most so many seconds.
LONGEST_SECONDS: Final = 10.0


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
