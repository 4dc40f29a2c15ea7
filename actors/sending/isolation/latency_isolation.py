"""Isolation by latency: a slower answer makes a broker unavailable for longer.

Source: RocketMQ's MQFaultStrategy. Its table does not isolate a broker that takes a few hundred milliseconds for every
answer. Here such a broker gets a window as well, but only after several slow answers in a row: a single slow answer is
not a reason to avoid a broker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.sending.isolation.isolation import TryOutcome

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
#: So many slow answers in a row (of at least `SLOW_MS`), each requested after the one before had arrived, open the
#: shortest window.
SLOW_MS: Final = 100
SLOW_IN_A_ROW: Final = 3
SLOW_WINDOW_MS: Final = 2_000


@dataclass(slots=True)
class LatencyIsolation:
    """Isolation by latency, with rank 0 for available, 1 for slow and 2 for failed.

    A broker's window of unavailability is only ever extended. `clock` is in seconds.
    """

    clock: Callable[[], float]
    _available_from: dict[str, float] = field(default_factory=dict)
    _failed: dict[str, TryOutcome] = field(default_factory=dict)
    #: By broker: the number of slow answers in a row, and when the last of them arrived.
    _slow: dict[str, tuple[int, float]] = field(default_factory=dict)

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        """Open or extend the broker's window after a failure or a slow answer."""
        if outcome is TryOutcome.ANSWERED:
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
        """Return 0 outside the broker's window, else 1 for slow and 2 for failed."""
        until = self._available_from.get(broker)
        if until is None:
            return 0
        if self.clock() >= until:
            self._available_from.pop(broker, None)
            return 0
        return 2 if broker in self._failed else 1

    def suspects(self) -> list[str]:
        """Return the brokers whose last try was not answered and whose window is open."""
        return [b for b, how in self._failed.items() if how is TryOutcome.SILENT and self.rank(b)]

    def recovered(self, broker: str) -> None:
        """Close the broker's window."""
        self._available_from.pop(broker, None)
        self._failed.pop(broker, None)
        self._slow.pop(broker, None)

    def validate(self) -> None:
        """Assert that no window is longer than the longest one of the table."""
        longest = LATENCY_TABLE_MS[0][1] / 1000
        assert all(until <= self.clock() + longest for until in self._available_from.values())

    def _slow_window_ms(self, broker: str, latency_ms: float) -> int:
        """Count a slow answer, and return the window in milliseconds; 0 for no window."""
        if latency_ms < SLOW_MS:
            self._slow.pop(broker, None)
            return 0
        now = self.clock()
        count, last = self._slow.get(broker, (0, -math.inf))
        if now - latency_ms / 1000 >= last:  # concurrent requests count as one slow answer
            count, last = count + 1, now
            self._slow[broker] = count, last
        return SLOW_WINDOW_MS if count >= SLOW_IN_A_ROW else 0


def _window_ms(latency_ms: float) -> int:
    return next((window for floor, window in LATENCY_TABLE_MS if latency_ms >= floor), 0)
