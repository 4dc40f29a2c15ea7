"""Limit when listener calls may begin: by a rate, and during an outage.

No I/O, injected clock.

In an outage nearly every message fails, as opposed to single bad messages. During it a consumer with
`on_outage="pause"` stops sending messages back, which would move its whole topic to the dead letters. It tries one call
at a time until one succeeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.backoff import Backoff

#: The burst: the tokens that accumulate while none is taken, in seconds of the rate; at least one message.
BURST_SECONDS = 0.1
#: The tolerance for rounding errors in sums of times, in tokens.
_ROUNDING = 1e-6


class TokenBucket:
    """A token bucket of `rate` messages per second.

    A batch larger than the burst is taken on credit, and the following messages wait for it.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._burst = max(1.0, rate * BURST_SECONDS)
        self._tokens = self._burst
        self._at = clock()

    @property
    def wait_seconds(self) -> float:
        """Return how long until the next message may be taken, 0 for now."""
        self._refill()
        missing = 1.0 - self._tokens
        return missing / self._rate if missing > _ROUNDING else 0.0

    @property
    def available(self) -> int:
        """Return how many messages may be taken now without credit."""
        self._refill()
        return max(0, int(self._tokens + _ROUNDING))

    def take(self, messages: int) -> None:
        """Take messages when `wait_seconds` is 0; a negative number returns messages that were not used."""
        self._refill()
        self._tokens -= messages

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now


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
