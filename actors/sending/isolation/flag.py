"""A broker that failed is flagged; all flags fall together, once a period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.actors.sending.isolation.base import Outcome


@dataclass(slots=True)
class FlagIsolation:
    """Ranks: 0 not flagged, 1 flagged. The periods follow each other from construction on. Seconds."""

    clock: Callable[[], float]
    period_seconds: float = 30.0
    _flags: dict[str, Outcome] = field(default_factory=dict)
    _reset_at: float = 0.0

    def __post_init__(self) -> None:
        self._reset_at = self.clock() + self.period_seconds

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:  # noqa: ARG002 - the protocol's
        """A failure raises the flag; a success leaves it, so that the reset alone decides."""
        self._fall_due()
        if outcome is not Outcome.ANSWERED:
            self._flags[broker] = outcome

    def rank(self, broker: str) -> int:
        """1 while its flag is up."""
        self._fall_due()
        return int(broker in self._flags)

    def suspects(self) -> list[str]:
        """Those flagged for silence."""
        self._fall_due()
        return [broker for broker, how in self._flags.items() if how is Outcome.SILENT]

    def recovered(self, broker: str) -> None:
        """Take its flag down."""
        self._flags.pop(broker, None)

    def validate(self) -> None:
        """The next reset is at most a period ahead."""
        assert self._reset_at <= self.clock() + self.period_seconds

    def _fall_due(self) -> None:
        late = self.clock() - self._reset_at
        if late >= 0:
            self._flags.clear()
            self._reset_at += (late // self.period_seconds + 1) * self.period_seconds
