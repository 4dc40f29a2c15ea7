"""Limit the number of messages per second, with small bursts. No I/O, injected clock."""

from __future__ import annotations

from collections.abc import Callable

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

    def take(self, messages: int) -> None:
        """Take messages. To be called when `wait_seconds` is 0."""
        self._refill()
        self._tokens -= messages

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
