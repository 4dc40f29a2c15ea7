"""A broker that failed is set aside until a period without a failure has passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.sending.isolation.base import Outcome


@dataclass(slots=True)
class QuarantineIsolation:
    """Ranks: 0 free, 1 set aside. Every failure begins the clean period anew. Seconds."""

    clock: Callable[[], float]
    clean_seconds: float = 10.0
    _failed_at: dict[str, tuple[float, Outcome]] = field(default_factory=dict)

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:  # noqa: ARG002 - the protocol's
        """A failure sets the broker aside; a success is not enough to let it back in."""
        if outcome is not Outcome.ANSWERED:
            self._failed_at[broker] = (self.clock(), outcome)

    def rank(self, broker: str) -> int:
        """0 after `clean_seconds` without a failure."""
        failed = self._failed_at.get(broker)
        if failed is None:
            return 0
        if self.clock() < failed[0] + self.clean_seconds:
            return 1
        self._failed_at.pop(broker, None)
        return 0

    def suspects(self) -> list[str]:
        """Those set aside for silence."""
        return [b for b, (_, how) in self._failed_at.copy().items() if how is Outcome.SILENT and self.rank(b)]

    def recovered(self, broker: str) -> None:
        """Let it back in."""
        self._failed_at.pop(broker, None)

    def validate(self) -> None:
        """Nothing failed in the future."""
        assert all(at <= self.clock() for at, _ in self._failed_at.values())
