"""The slower a broker answered, the longer it is left out. Source: RocketMQ's MQFaultStrategy.

The table leaves a broker alone that takes a few hundred milliseconds for every answer. Here others are preferred to it,
as they are to one that was slow once by the table: a hiccup is nothing, but slow over and over is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.sending.isolation.base import Outcome

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
_QUICK_MS: Final = LATENCY_TABLE_MS[-1][0]
#: A failed try counts as this latency.
FAILURE_LATENCY_MS: Final = 10_000
#: So many answers in a row that took so long, each asked for after the one before had come, open the shortest window.
SLOW_MS: Final = 100
SLOW_IN_A_ROW: Final = 3
SLOW_WINDOW_MS: Final = 2_000


@dataclass(slots=True)
class LatencyIsolation:
    """Ranks: 0 available, 1 slow but answering, 2 failed. A window is only ever extended. `clock` in seconds."""

    clock: Callable[[], float]
    _available_from: dict[str, float] = field(default_factory=dict)
    _failed: dict[str, Outcome] = field(default_factory=dict)
    #: How many slow answers in a row, and when the last of them came.
    _slow: dict[str, tuple[int, float]] = field(default_factory=dict)

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:
        """Open or extend the broker's window by the table, or for being slow over and over."""
        if outcome is Outcome.ANSWERED:
            self._failed.pop(broker, None)
            if latency_ms < _QUICK_MS:
                self._slow.pop(broker, None)
                return
            window_ms = max(_window_ms(latency_ms), self._slow_window_ms(broker, latency_ms))
        else:
            self._failed[broker] = outcome
            window_ms = _window_ms(FAILURE_LATENCY_MS)
        if window_ms:
            until = self.clock() + window_ms / 1000
            self._available_from[broker] = max(until, self._available_from.get(broker, until))

    def rank(self, broker: str) -> int:
        """0 once its window is over, whatever happened in it."""
        until = self._available_from.get(broker)
        if until is None:
            return 0
        if self.clock() >= until:
            self._available_from.pop(broker, None)
            return 0
        return 2 if broker in self._failed else 1

    def suspects(self) -> list[str]:
        """Those whose last try was not answered and whose window is open."""
        return [b for b, how in self._failed.items() if how is Outcome.SILENT and self.rank(b)]

    def recovered(self, broker: str) -> None:
        """Close its window."""
        self._available_from.pop(broker, None)
        self._failed.pop(broker, None)
        self._slow.pop(broker, None)

    def validate(self) -> None:
        """No window reaches further than the table's longest."""
        longest = LATENCY_TABLE_MS[0][1] / 1000
        assert all(until <= self.clock() + longest for until in self._available_from.values())

    def _slow_window_ms(self, broker: str, latency_ms: float) -> int:
        """Count an answer; how long others are preferred if it is one slow answer too many."""
        if latency_ms < SLOW_MS:
            self._slow.pop(broker, None)
            return 0
        now = self.clock()
        count, last = self._slow.get(broker, (0, -math.inf))
        if now - latency_ms / 1000 >= last:  # those that waited together are one
            count, last = count + 1, now
            self._slow[broker] = count, last
        return SLOW_WINDOW_MS if count >= SLOW_IN_A_ROW else 0


def _window_ms(latency_ms: float) -> int:
    return next((window for floor, window in LATENCY_TABLE_MS if latency_ms >= floor), 0)
