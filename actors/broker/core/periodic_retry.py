"""Decide when a failed periodic task is retried, and what is logged. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.storage.errors import StoreError

#: The longest wait, in seconds, before a task that the state of the disk prevents is tried again.
MAX_BACKOFF_SECONDS: Final = 10.0
#: The first wait, in seconds, after one part of a task has failed.
MIN_BACKOFF_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The consequences of a failure.

    Attributes:
        wait: seconds until the next try.
        line: the line to log; None if nothing is to be logged.
        with_traceback: whether to log the traceback too, because the error was unexpected.
    """

    wait: float
    line: str | None
    with_traceback: bool = False


@dataclass(slots=True)
class PeriodicTaskRetry:
    """The failures of one periodic task, which runs every `seconds`.

    A `StoreError` (a full disk, a failed disk, no file descriptor left) is a state that lasts, so the wait grows from
    try to try. Any other error is a bug in RayMQ and does not predict the next run, so the wait stays `seconds`. The
    first error of a kind is logged, then the 2nd, 4th, 8th ... of the same kind in a row.
    """

    name: str
    seconds: float
    _in_a_row: int = 0
    _last: str = ""
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        longest = max(self.seconds, MAX_BACKOFF_SECONDS)
        self._backoff = Backoff(first=self.seconds, factor=2.0, jitter=0.0, cap=longest)

    def failed(self, error: Exception) -> RetryDecision:
        """Record that a run has failed, and return the retry decision."""
        lasts = isinstance(error, StoreError)
        kind = type(error).__name__
        if kind != self._last:
            self.succeeded()
        self._last = kind
        self._in_a_row += 1
        wait = self._backoff.next_delay() if lasts else self.seconds
        if self._in_a_row & (self._in_a_row - 1):
            return RetryDecision(wait, None)
        times = "" if self._in_a_row == 1 else f" {self._in_a_row} times in a row"
        return RetryDecision(wait, f"{self.name} failed{times}: {str(error) or kind}", with_traceback=not lasts)

    def succeeded(self) -> None:
        """Record that a run has succeeded."""
        if self._in_a_row:
            self._in_a_row = 0
            self._last = ""
            self._backoff.reset()


@dataclass(slots=True)
class PerKeyRetry:
    """The failures of one task for each of many parts, such as the delay levels.

    The failure of one part does not affect the others. The wait of a failed part grows from failure to failure, so a
    loop with twenty rounds per second does not spend its time on that part. Failures are logged as by
    `PeriodicTaskRetry`. `clock` is in seconds.
    """

    clock: Callable[[], float]
    _failing: dict[Hashable, tuple[PeriodicTaskRetry, Backoff, float]] = field(default_factory=dict)

    def is_backing_off(self, part: Hashable) -> bool:
        """Return True if the part has failed and its next try is not yet due."""
        known = self._failing.get(part)
        return known is not None and self.clock() < known[2]

    def failed(self, part: Hashable, name: str, error: Exception, log: logging.Logger) -> None:
        """Record that the part has failed; `name` stands for it in the log."""
        known = self._failing.get(part)
        if known is None:
            backoff = Backoff(first=MIN_BACKOFF_SECONDS, factor=2.0, jitter=0.0, cap=MAX_BACKOFF_SECONDS)
            troubles = PeriodicTaskRetry(name, MIN_BACKOFF_SECONDS)
        else:
            troubles, backoff, _ = known
        self._failing[part] = troubles, backoff, self.clock() + backoff.next_delay()
        verdict = troubles.failed(error)
        if verdict.line is not None:
            log.error("%s; it is retried", verdict.line, exc_info=error if verdict.with_traceback else None)

    def succeeded(self, part: Hashable) -> None:
        """Record that the part has succeeded."""
        if self._failing:
            self._failing.pop(part, None)

    def retain_only(self, parts: Container[Hashable]) -> None:
        """Forget all parts except `parts`, because the others no longer exist."""
        for part in [part for part in self._failing if part not in parts]:
            del self._failing[part]
