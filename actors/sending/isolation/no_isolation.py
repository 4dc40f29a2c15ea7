"""No isolation: plain round robin."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.sending.isolation.isolation import TryOutcome


@dataclass(slots=True)
class NoIsolation:
    """A strategy that ranks all brokers equally."""

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        """Ignore the outcome."""

    def rank(self, broker: str) -> int:  # noqa: ARG002 - in the protocol
        """Return 0."""
        return 0

    def suspects(self) -> list[str]:
        """Return an empty list."""
        return []

    def recovered(self, broker: str) -> None:
        """Do nothing."""

    def validate(self) -> None:
        """Do nothing: the strategy has no state."""
