"""An isolation strategy that a producer's threads and its event loop share."""

from __future__ import annotations

import threading

from raymq.actors.sending.isolation.isolation import Isolation, TryOutcome


class SynchronizedIsolation:
    """The given strategy under a reentrant lock.

    A signal handler may take the lock again on a thread that it has interrupted during a send.
    """

    def __init__(self, inner: Isolation) -> None:
        self._inner = inner
        self._lock = threading.RLock()

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        """Record an outcome, as `Isolation.report`."""
        with self._lock:
            self._inner.report(broker, outcome, latency_ms)

    def rank(self, broker: str) -> int:
        """Return the broker's rank, as `Isolation.rank`."""
        with self._lock:
            return self._inner.rank(broker)

    def suspects(self) -> list[str]:
        """Return the suspects, as `Isolation.suspects`."""
        with self._lock:
            return self._inner.suspects()

    def recovered(self, broker: str) -> None:
        """End a broker's isolation, as `Isolation.recovered`."""
        with self._lock:
            self._inner.recovered(broker)

    def validate(self) -> None:
        """Assert the invariants of the strategy."""
        with self._lock:
            self._inner.validate()
