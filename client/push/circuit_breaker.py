"""Detect an outage, in which nearly every message fails, as opposed to single bad messages.

During an outage a consumer with `on_outage="pause"` stops sending messages back, which would move its whole topic to
the dead letters. It tries one call at a time until one succeeds. No I/O, injected clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.backoff import Backoff

#: How many of the last outcomes are evaluated, and how many failures among them are an outage.
WINDOW_OUTCOMES = 20
OUTAGE_FAILURES = 18
#: The pause before the first probe, and the longest pause between two probes.
FIRST_PROBE_SECONDS = 1.0
LONGEST_PROBE_SECONDS = 30.0


@dataclass(slots=True)
class CircuitBreaker:
    """The outage state of one consumer. `clock` is monotonic seconds."""

    clock: Callable[[], float]
    active: bool = False
    _outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW_OUTCOMES))
    _backoff: Backoff = field(
        default_factory=lambda: Backoff(first=FIRST_PROBE_SECONDS, cap=LONGEST_PROBE_SECONDS, jitter=0.0)
    )
    _probe_at: float = 0.0

    def record(self, *, success: bool) -> None:
        """Record the outcome of one message.

        The messages of a call are recorded one by one.
        """
        self._outcomes.append(success)
        if success:
            if self.active:
                self._outcomes.clear()
                self._backoff.reset()
            self.active = False
        elif not self.active and self._outcomes.count(False) >= OUTAGE_FAILURES:
            self.active = True
            self._probe_at = self.clock() + self._backoff.next_delay()

    def probe_failed(self) -> None:
        """Lengthen the pause after a failed call during the outage."""
        self._probe_at = self.clock() + self._backoff.next_delay()

    @property
    def wait_seconds(self) -> float:
        """Return how long until a call may be tried, 0 outside of an outage."""
        return max(0.0, self._probe_at - self.clock()) if self.active else 0.0
