"""One strategy for several threads: a producer's threads and its event loop learn together."""

from __future__ import annotations

import threading

from raymq.actors.sending.isolation.base import Isolation, Outcome


class Shared:
    """As the strategy that it is given, under a lock that a signal handler amid a send may take, too."""

    def __init__(self, inner: Isolation) -> None:
        self._inner = inner
        self._lock = threading.RLock()

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:
        """As `Isolation.report`."""
        with self._lock:
            self._inner.report(broker, outcome, latency_ms)

    def rank(self, broker: str) -> int:
        """As `Isolation.rank`."""
        with self._lock:
            return self._inner.rank(broker)

    def suspects(self) -> list[str]:
        """As `Isolation.suspects`."""
        with self._lock:
            return self._inner.suspects()

    def recovered(self, broker: str) -> None:
        """As `Isolation.recovered`."""
        with self._lock:
            self._inner.recovered(broker)

    def validate(self) -> None:
        """As `Isolation.validate`."""
        with self._lock:
            self._inner.validate()
