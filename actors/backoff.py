"""Exponential back-off after failures: 1 s x 1.6, jitter 0.2, cap 120 s."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Shared and thread-safe: to seed one generator per back-off would cost more than a whole send.
_SHARED = random.Random()


@dataclass(slots=True)
class Backoff:
    """Growing waits, in seconds.

    Call `next_delay()` after each failure and `reset()` after a success.
    """

    first: float = 1.0
    factor: float = 1.6
    jitter: float = 0.2
    cap: float = 120.0
    rng: random.Random = _SHARED
    failures: int = 0

    def next_delay(self) -> float:
        """Count a failure and return the wait after it.

        It is within +-`jitter` of first x factor^n, and at most `cap`.
        """
        try:
            delay = min(self.cap, self.first * self.factor**self.failures)
        except OverflowError:  # after some thousand failures the power exceeds a float
            delay = self.cap
        self.failures += 1
        return min(self.cap, delay * (1.0 + self.rng.uniform(-self.jitter, self.jitter)))

    def reset(self) -> None:
        """Reset the count of failures."""
        self.failures = 0
