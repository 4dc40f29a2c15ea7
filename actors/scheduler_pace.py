"""When the scheduler asks a broker next. No I/O; times are seconds of a clock that nobody sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.protocol import DueReport

#: A broker that is not behind is asked this often at most: a call costs as much as the delivery of twenty messages.
LEAST_SECONDS = 0.02
#: A broker with nothing due is asked this often: a message that was stored meanwhile may be due by then.
IDLE_SECONDS = 0.1
#: A broker that did not answer is left alone for this long.
FAILURE_SECONDS = 0.5


@dataclass(slots=True)
class SchedulerPace:
    """One broker's next turn."""

    clock: Callable[[], float]
    _next: float = field(default=0.0)

    def wait(self) -> float:
        """Seconds until the broker should be asked; 0 or less means now."""
        return self._next - self.clock()

    def answered(self, report: DueReport) -> None:
        """It delivered what was due: ask again when the next is, soon but not at once; at once where it is behind."""
        now = self.clock()
        wait = IDLE_SECONDS if report.wait_ms is None else report.wait_ms / 1000
        is_behind = wait < -LEAST_SECONDS
        self._next = now if is_behind else now + min(max(wait, LEAST_SECONDS), IDLE_SECONDS)

    def failed(self) -> None:
        """It did not answer."""
        self._next = self.clock() + FAILURE_SECONDS
