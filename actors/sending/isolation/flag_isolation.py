"""Isolation that flags failed brokers, and clears all flags once per period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.sending.isolation.isolation import TryOutcome


@dataclass(slots=True)
class FlagIsolation:
    """Isolation by flags, with rank 0 for no flag and 1 for a flag.

    The periods follow each other from construction on. Times are in seconds.
    """

    clock: Callable[[], float]
    period_seconds: float = 30.0
    _flags: dict[str, TryOutcome] = field(default_factory=dict)
    _reset_at: float = 0.0

    def __post_init__(self) -> None:
        self._reset_at = self.clock() + self.period_seconds

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:  # noqa: ARG002 - in the protocol
        """Flag a broker after a failure.

        A success does not clear the flag; only the end of the period does.
        """
        self._fall_due()
        if outcome is not TryOutcome.ANSWERED:
            self._flags[broker] = outcome

    def rank(self, broker: str) -> int:
        """Return 1 while the broker is flagged, else 0."""
        self._fall_due()
        return int(broker in self._flags)

    def suspects(self) -> list[str]:
        """Return the brokers that were flagged because they did not answer."""
        self._fall_due()
        return [broker for broker, how in self._flags.items() if how is TryOutcome.SILENT]

    def recovered(self, broker: str) -> None:
        """Clear the broker's flag."""
        self._flags.pop(broker, None)

    def validate(self) -> None:
        """Assert that the next reset is at most one period ahead."""
        assert self._reset_at <= self.clock() + self.period_seconds

    def _fall_due(self) -> None:
        late = self.clock() - self._reset_at
        if late >= 0:
            self._flags.clear()
            self._reset_at += (late // self.period_seconds + 1) * self.period_seconds
