"""No isolation: plain round robin."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.sending.isolation.base import Outcome


@dataclass(slots=True)
class NoIsolation:
    """Every broker is as good as any."""

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:
        """Learn nothing."""

    def rank(self, broker: str) -> int:  # noqa: ARG002 - the protocol's
        """Always 0."""
        return 0

    def suspects(self) -> list[str]:
        """None."""
        return []

    def recovered(self, broker: str) -> None:
        """Nothing to free."""

    def validate(self) -> None:
        """It has no state."""
