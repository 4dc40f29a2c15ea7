"""Which staged writes a broker has to ask about, whom, and when: those that nobody has touched for a while.

No I/O; `clock` is seconds that do not go back. A broker never decides by itself: while the home of a write does not
answer, its rows are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.backoff import Backoff

#: So long after rows were added, or the home said "not decided", it is asked (again).
QUIET_SECONDS: Final = 5.0
#: It is asked this often in any case, so that it knows that the write goes on.
_ALIVE_SECONDS: Final = 600.0
#: Of rows that were here when the broker started: nobody knows for how long nothing was added, so it tells nothing.
UNSEEN_SECONDS: Final = 1e9
#: The longest pause before a home that does not answer is asked again.
_LONGEST_SECONDS: Final = 30.0
#: So many writes are asked about at a time.
_MOST_ASKED: Final = 500


@dataclass(slots=True)
class _Open:
    home: str
    touched: float
    asked: float


@dataclass(slots=True)
class _Home:
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, cap=_LONGEST_SECONDS))
    not_before: float = 0.0


class Following:
    """The open writes of a broker, and those of which the home is not told yet that they are done."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._done: dict[str, str] = {}
        self._homes: dict[str, _Home] = {}
        #: Since when the homes of open writes are known to be no brokers.
        self._without_home: dict[str, float] = {}

    def touched(self, transaction: str, home: str) -> None:
        """Rows were added."""
        now = self._clock()
        known = self._open.get(transaction)
        if known is None:
            self._open[transaction] = _Open(home, now, now)
        else:
            known.touched = now

    def found(self, transaction: str, home: str) -> None:
        """It was here when the broker started: its home is asked at once, and learns of no rows that were added."""
        now = self._clock()
        self._open[transaction] = _Open(home, now - UNSEEN_SECONDS, now - QUIET_SECONDS)

    def over(self, transaction: str) -> None:
        """Nothing is to be done any more, and nobody need be told."""
        self._open.pop(transaction, None)
        self._done.pop(transaction, None)

    def not_open(self, transaction: str) -> None:
        """There is nothing to ask about it any more; its home may have to be told yet."""
        self._open.pop(transaction, None)

    def done(self, transaction: str, home: str) -> None:
        """All of it is in the log, on disk: its home has to be told."""
        self._open.pop(transaction, None)
        self._done[transaction] = home

    def told(self, transaction: str) -> None:
        """The home knows that it is done."""
        self._done.pop(transaction, None)

    def is_told(self, transaction: str) -> bool:
        """Whether nobody has to be told of it."""
        return transaction not in self._done

    def to_ask(self) -> dict[str, dict[str, float]]:
        """By home the writes to ask about now, and for how long nothing was added to each, in seconds.

        They count as asked; `failed` has them asked again soon.
        """
        now = self._clock()
        wanted: dict[str, dict[str, float]] = {}
        for transaction, each in self._open.items():
            quiet = now - max(each.touched, each.asked) >= QUIET_SECONDS
            if (quiet or now - each.asked >= _ALIVE_SECONDS) and self._is_due(each.home, now):
                asked = wanted.setdefault(each.home, {})
                if len(asked) < _MOST_ASKED:
                    asked[transaction] = now - each.touched
                    each.asked = now
        return wanted

    def without_home(self, brokers: Collection[str], seconds: float) -> list[str]:
        """The open writes whose home is none of these brokers, and has been none since a call so long ago."""
        now = self._clock()
        without = [name for name, each in self._open.items() if each.home not in brokers]
        self._without_home = {name: self._without_home.get(name, now) for name in without}
        return [name for name, since in self._without_home.items() if now - since >= seconds]

    def to_tell(self) -> dict[str, list[str]]:
        """By home the writes that are done, of which it is to be told now."""
        now = self._clock()
        wanted: dict[str, list[str]] = {}
        for transaction, home in self._done.items():
            if self._is_due(home, now):
                told = wanted.setdefault(home, [])
                if len(told) < _MOST_ASKED:
                    told.append(transaction)
        return wanted

    def answered(self, home: str) -> None:
        """It is there."""
        self._homes.pop(home, None)

    def failed(self, home: str) -> None:
        """It does not answer: it is asked again after a pause, a longer one each time."""
        known = self._homes.setdefault(home, _Home())
        known.not_before = self._clock() + known.backoff.next_delay()
        for each in self._open.values():
            if each.home == home:
                each.asked = min(each.asked, self._clock() - QUIET_SECONDS)

    def again(self, transaction: str) -> None:
        """What the home has decided could not be done: ask once more, soon."""
        known = self._open.get(transaction)
        if known is not None:
            known.asked = self._clock() - QUIET_SECONDS + 1.0
            known.touched = min(known.touched, known.asked)

    def _is_due(self, home: str, now: float) -> bool:
        known = self._homes.get(home)
        return known is None or known.not_before <= now
