"""Track which staged writes a broker has to query, at which coordinator, and when.

A write is queried if no rows were added for a while. A broker never decides by itself: while the coordinator ("home")
of a write does not answer, its rows are kept. No I/O; `clock` is seconds that never go back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.backoff import Backoff

#: The coordinator is queried (again) this long after rows were added, or after its answer "not decided".
QUIET_SECONDS: Final = 5.0
#: The coordinator is queried this often in any case, so that it does not abort a write that goes on.
_ALIVE_SECONDS: Final = 600.0
#: The idle time reported for rows that existed when the broker started, because their real idle time is unknown.
UNKNOWN_IDLE_SECONDS: Final = 1e9
#: The longest pause before a coordinator that does not answer is queried again.
_LONGEST_SECONDS: Final = 30.0
#: How many writes are queried or reported at a time.
_MAX_ASKED: Final = 500


@dataclass(slots=True)
class _Open:
    coordinator: str
    touched: float
    asked: float


@dataclass(slots=True)
class _CoordinatorState:
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, cap=_LONGEST_SECONDS))
    not_before: float = 0.0


class InDoubtTracker:
    """The open writes of a broker, and the finished ones still to be reported.

    A finished write is reported to its coordinator.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._done: dict[str, str] = {}
        self._coordinators: dict[str, _CoordinatorState] = {}
        #: By open write, since when its coordinator is known to be none of the brokers.
        self._without_home: dict[str, float] = {}

    def touch(self, transaction: str, coordinator: str) -> None:
        """Record that rows were added to a write."""
        now = self._clock()
        known = self._open.get(transaction)
        if known is None:
            self._open[transaction] = _Open(coordinator, now, now)
        else:
            known.touched = now

    def recover(self, transaction: str, coordinator: str) -> None:
        """Record a write that existed when the broker started.

        Its coordinator is queried at once, and is not informed of added rows.
        """
        now = self._clock()
        self._open[transaction] = _Open(coordinator, now - UNKNOWN_IDLE_SECONDS, now - QUIET_SECONDS)

    def forget(self, transaction: str) -> None:
        """Stop tracking a write: neither a query nor a report is needed any more."""
        self._open.pop(transaction, None)
        self._done.pop(transaction, None)

    def mark_closed(self, transaction: str) -> None:
        """Stop querying a write; a report to its coordinator may still be due."""
        self._open.pop(transaction, None)

    def mark_done(self, transaction: str, coordinator: str) -> None:
        """Record that a write is in the log, on disk, and must be reported."""
        self._open.pop(transaction, None)
        self._done[transaction] = coordinator

    def mark_notified(self, transaction: str) -> None:
        """Record that the report of a finished write has reached its coordinator."""
        self._done.pop(transaction, None)

    def is_notified(self, transaction: str) -> bool:
        """Return True if no report of this write is due."""
        return transaction not in self._done

    def due_queries(self) -> dict[str, dict[str, float]]:
        """Return, by coordinator, the writes to query now and their idle times in seconds.

        The idle time is how long no rows were added. The writes count as queried; `failed` makes them due again soon.
        """
        now = self._clock()
        due: dict[str, dict[str, float]] = {}
        for transaction, each in self._open.items():
            quiet = now - max(each.touched, each.asked) >= QUIET_SECONDS
            if (quiet or now - each.asked >= _ALIVE_SECONDS) and self._is_due(each.coordinator, now):
                idle = due.setdefault(each.coordinator, {})
                if len(idle) < _MAX_ASKED:
                    idle[transaction] = now - each.touched
                    each.asked = now
        return due

    def orphaned(self, brokers: Collection[str], seconds: float) -> list[str]:
        """Return the open writes whose coordinator has been none of `brokers` for `seconds`.

        The time counts from the first call in which the coordinator was missing.
        """
        now = self._clock()
        without = [name for name, each in self._open.items() if each.coordinator not in brokers]
        self._without_home = {name: self._without_home.get(name, now) for name in without}
        return [name for name, since in self._without_home.items() if now - since >= seconds]

    def due_notifications(self) -> dict[str, list[str]]:
        """Return, by coordinator, the finished writes to report now."""
        now = self._clock()
        due: dict[str, list[str]] = {}
        for transaction, coordinator in self._done.items():
            if self._is_due(coordinator, now):
                transactions = due.setdefault(coordinator, [])
                if len(transactions) < _MAX_ASKED:
                    transactions.append(transaction)
        return due

    def record_success(self, coordinator: str) -> None:
        """Record that a coordinator has answered."""
        self._coordinators.pop(coordinator, None)

    def failed(self, coordinator: str) -> None:
        """Record that a coordinator did not answer; it is queried again after a growing pause."""
        known = self._coordinators.setdefault(coordinator, _CoordinatorState())
        known.not_before = self._clock() + known.backoff.next_delay()
        for each in self._open.values():
            if each.coordinator == coordinator:
                each.asked = min(each.asked, self._clock() - QUIET_SECONDS)

    def retry_soon(self, transaction: str) -> None:
        """Query the write again soon, because its decision could not be carried out."""
        known = self._open.get(transaction)
        if known is not None:
            known.asked = self._clock() - QUIET_SECONDS + 1.0
            known.touched = min(known.touched, known.asked)

    def _is_due(self, coordinator: str, now: float) -> bool:
        known = self._coordinators.get(coordinator)
        return known is None or known.not_before <= now
