"""When the scheduler asks a broker next. No I/O; times are seconds of a clock that nobody sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.protocol import DueReport

#: A broker whose next message is overdue by more than this is behind.
BEHIND_SECONDS = 0.02
#: A broker that is not behind is asked this often: it delivers by itself what becomes due meanwhile.
IDLE_SECONDS = 1.0
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
        """It delivered what was due: ask again at once where it is behind."""
        is_behind = report.wait_ms is not None and report.wait_ms / 1000 < -BEHIND_SECONDS
        self._next = self.clock() + (0.0 if is_behind else IDLE_SECONDS)

    def failed(self) -> None:
        """It did not answer."""
        self._next = self.clock() + FAILURE_SECONDS
