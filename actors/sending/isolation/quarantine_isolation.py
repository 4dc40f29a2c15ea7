"""Isolation of a failed broker until a period without a failure has passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.sending.isolation.isolation import TryOutcome


@dataclass(slots=True)
class QuarantineIsolation:
    """Isolation by quarantine, with rank 0 for free and 1 for isolated.

    Every failure restarts the period. Times are in seconds.
    """

    clock: Callable[[], float]
    clean_seconds: float = 10.0
    _failed_at: dict[str, tuple[float, TryOutcome]] = field(default_factory=dict)

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:  # noqa: ARG002 - in the protocol
        """Isolate a broker after a failure; a success does not end the isolation."""
        if outcome is not TryOutcome.ANSWERED:
            self._failed_at[broker] = (self.clock(), outcome)

    def rank(self, broker: str) -> int:
        """Return 1 for `clean_seconds` after the broker's last failure, else 0."""
        failed = self._failed_at.get(broker)
        if failed is None:
            return 0
        if self.clock() < failed[0] + self.clean_seconds:
            return 1
        self._failed_at.pop(broker, None)
        return 0

    def suspects(self) -> list[str]:
        """Return the brokers that are isolated because they did not answer."""
        return [b for b, (_, how) in self._failed_at.copy().items() if how is TryOutcome.SILENT and self.rank(b)]

    def recovered(self, broker: str) -> None:
        """End the broker's isolation."""
        self._failed_at.pop(broker, None)

    def validate(self) -> None:
        """Assert that no failure lies in the future."""
        assert all(at <= self.clock() for at, _ in self._failed_at.values())
