"""A token bucket: so many messages a second, in small bursts. No I/O, injected clock."""

from __future__ import annotations

from collections.abc import Callable

#: What may be saved up while nothing is taken, in seconds of the rate; at least one message.
BURST_SECONDS = 0.1
#: What a sum of times may miss of a whole token.
_ROUNDING = 1e-6


class TokenBucket:
    """`rate` messages per second; a batch larger than the burst is taken on credit and paid by waiting."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._burst = max(1.0, rate * BURST_SECONDS)
        self._tokens = self._burst
        self._at = clock()

    @property
    def wait_seconds(self) -> float:
        """How long until the next message may be taken; 0 if one may now."""
        self._refill()
        missing = 1.0 - self._tokens
        return missing / self._rate if missing > _ROUNDING else 0.0

    def take(self, messages: int) -> None:
        """Take them; call it when `wait_seconds` is 0."""
        self._refill()
        self._tokens -= messages

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
