"""Exponential back-off: how long to wait after the n-th failure in a row; 1 s x 1.6, jitter 0.2, cap 120 s."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Seeding a source of one's own costs more than a whole send; this one is thread-safe.
_SHARED = random.Random()


@dataclass(slots=True)
class Backoff:
    """Waits that grow. `next_delay()` after each failure, `reset()` after a success; seconds."""

    first: float = 1.0
    factor: float = 1.6
    jitter: float = 0.2
    cap: float = 120.0
    rng: random.Random = _SHARED
    failures: int = 0

    def next_delay(self) -> float:
        """Count a failure and return the wait that follows it: within +-`jitter` of first x factor^n, at most `cap`."""
        try:
            delay = min(self.cap, self.first * self.factor**self.failures)
        except OverflowError:  # after a thousand and more failures the power is no float any more
            delay = self.cap
        self.failures += 1
        return min(self.cap, delay * (1.0 + self.rng.uniform(-self.jitter, self.jitter)))

    def reset(self) -> None:
        """Forget the failures."""
        self.failures = 0
