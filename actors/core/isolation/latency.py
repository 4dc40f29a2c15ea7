"""The slower a broker answered, the longer it is left out. Source: RocketMQ's MQFaultStrategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.core.isolation.base import Outcome

#: A latency of at least the first number makes a broker unavailable for the second; milliseconds.
LATENCY_TABLE_MS: Final = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)
#: A failed try counts as this latency.
FAILURE_LATENCY_MS: Final = 10_000


@dataclass(slots=True)
class LatencyIsolation:
    """Ranks: 0 available, 1 slow but answering, 2 failed. A window is only ever extended. `clock` in seconds."""

    clock: Callable[[], float]
    _available_from: dict[str, float] = field(default_factory=dict)
    _failed: dict[str, Outcome] = field(default_factory=dict)

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:
        """Open or extend the broker's window by the table."""
        if outcome is Outcome.ANSWERED:
            self._failed.pop(broker, None)
        else:
            self._failed[broker] = outcome
            latency_ms = FAILURE_LATENCY_MS
        window_ms = next((window for floor, window in LATENCY_TABLE_MS if latency_ms >= floor), 0)
        if window_ms:
            until = self.clock() + window_ms / 1000
            self._available_from[broker] = max(until, self._available_from.get(broker, until))

    def rank(self, broker: str) -> int:
        """0 once its window is over, whatever happened in it."""
        until = self._available_from.get(broker)
        if until is None:
            return 0
        if self.clock() >= until:
            self._available_from.pop(broker)
            return 0
        return 2 if broker in self._failed else 1

    def suspects(self) -> list[str]:
        """Those whose last try was not answered and whose window is open."""
        return [b for b, how in self._failed.items() if how is Outcome.SILENT and self.rank(b)]

    def recovered(self, broker: str) -> None:
        """Close its window."""
        self._available_from.pop(broker, None)
        self._failed.pop(broker, None)

    def validate(self) -> None:
        """No window reaches further than the table's longest."""
        longest = LATENCY_TABLE_MS[0][1] / 1000
        assert all(until <= self.clock() + longest for until in self._available_from.values())
