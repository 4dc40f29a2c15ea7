"""Isolation by the number of recent failures; equal brokers are used round robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.sending.isolation.isolation import TryOutcome

#: The most failures that are remembered per broker: two brokers that always fail rank equally.
_REMEMBERED: Final = 1_000


@dataclass(slots=True)
class LeastFailuresIsolation:
    """Isolation whose rank is the number of failures in the last `window_seconds`.

    Without a window a single failure would cost a broker all traffic.
    """

    clock: Callable[[], float]
    window_seconds: float = 60.0
    _failed_at: dict[str, deque[float]] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:  # noqa: ARG002 - in the protocol
        """Count a failure."""
        if outcome is not TryOutcome.ANSWERED:
            self._failed_at.setdefault(broker, deque(maxlen=_REMEMBERED)).append(self.clock())
        if outcome is TryOutcome.SILENT:
            self._silent.add(broker)
        else:
            self._silent.discard(broker)

    def rank(self, broker: str) -> int:
        """Return the number of the broker's recent failures."""
        failures = self._failed_at.get(broker)
        if failures is None:
            return 0
        oldest = self.clock() - self.window_seconds
        while failures and failures[0] <= oldest:
            failures.popleft()
        if not failures:
            self._failed_at.pop(broker, None)
        return len(failures)

    def suspects(self) -> list[str]:
        """Return the brokers that did not answer the last try and still have recent failures."""
        return [broker for broker in sorted(self._silent) if self.rank(broker)]

    def recovered(self, broker: str) -> None:
        """Forget the broker's failures."""
        self._failed_at.pop(broker, None)
        self._silent.discard(broker)

    def validate(self) -> None:
        """Assert that the failures are remembered in order."""
        assert all(list(failures) == sorted(failures) for failures in self._failed_at.values())
