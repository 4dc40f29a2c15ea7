"""Decide when the scheduler polls a broker again.

The module performs no I/O. Times are seconds of a clock that is never adjusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.protocol import DueReport

#: A broker whose next message is overdue by more than this is behind.
BEHIND_SECONDS = 0.02
#: The interval of polling a broker that is not behind. Meanwhile the broker delivers due messages by itself.
IDLE_SECONDS = 1.0
#: The pause before polling a broker that did not answer.
FAILURE_SECONDS = 0.5


@dataclass(slots=True)
class PollSchedule:
    """The time of the next poll of one broker."""

    clock: Callable[[], float]
    _next: float = field(default=0.0)

    def wait(self) -> float:
        """Return the seconds until the next poll; 0 or less means now."""
        return self._next - self.clock()

    def answered(self, report: DueReport) -> None:
        """Schedule the next poll after an answer; at once if the broker is behind."""
        is_behind = report.wait_ms is not None and report.wait_ms / 1000 < -BEHIND_SECONDS
        self._next = self.clock() + (0.0 if is_behind else IDLE_SECONDS)

    def failed(self) -> None:
        """Schedule the next poll after a failure."""
        self._next = self.clock() + FAILURE_SECONDS
