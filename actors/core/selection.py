"""Which queue a send goes to: round robin, and failure isolation by latency. No I/O, injected clock.

Source of the table and of the order of picks: RocketMQ's MQFaultStrategy and LatencyFaultToleranceImpl.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raymq.actors.protocol import MessageQueue

#: A latency of at least the first number makes a broker unavailable for the second; milliseconds.
LATENCY_TABLE_MS = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)
#: A failed try counts as this latency.
FAILURE_LATENCY_MS = 10_000


class Isolation(Protocol):
    """Learns how brokers behave, and says which of them to leave out."""

    def report(self, broker: str, latency_ms: float, *, failed: bool, reachable: bool) -> None:
        """The outcome of a try."""

    def is_available(self, broker: str) -> bool:
        """Whether the broker should get traffic now."""

    def is_reachable(self, broker: str) -> bool:
        """Whether the broker answered when last tried."""


@dataclass(slots=True)
class NoIsolation:
    """Every broker is always fine."""

    def report(self, broker: str, latency_ms: float, *, failed: bool, reachable: bool) -> None:
        """Learn nothing."""

    def is_available(self, broker: str) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def is_reachable(self, broker: str) -> bool:  # noqa: ARG002
        """Always."""
        return True


@dataclass(slots=True)
class LatencyIsolation:
    """The slower a broker answered, the longer it is left out. A window is only ever extended. `clock` in seconds."""

    clock: Callable[[], float]
    _available_from: dict[str, float] = field(default_factory=dict)
    _unreachable: set[str] = field(default_factory=set)

    def report(self, broker: str, latency_ms: float, *, failed: bool, reachable: bool) -> None:
        """The outcome of a try that took `latency_ms`."""
        scored_ms = FAILURE_LATENCY_MS if failed else latency_ms
        window_ms = next((window for floor, window in LATENCY_TABLE_MS if scored_ms >= floor), 0)
        until = self.clock() + window_ms / 1000
        if until > self._available_from.get(broker, 0.0):
            self._available_from[broker] = until
        if reachable:
            self._unreachable.discard(broker)
        else:
            self._unreachable.add(broker)

    def is_available(self, broker: str) -> bool:
        """Whether its window is over."""
        return self.clock() >= self._available_from.get(broker, 0.0)

    def is_reachable(self, broker: str) -> bool:
        """Whether the last try reached it."""
        return broker not in self._unreachable

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        longest = LATENCY_TABLE_MS[0][1] / 1000
        assert all(until <= self.clock() + longest for until in self._available_from.values())


@dataclass(slots=True)
class QueuePicker:
    """Round robin over a topic's queues, with what `isolation` knows. One per producer; `start` is its first index."""

    isolation: Isolation
    start: int = 0
    _next: dict[str, int] = field(default_factory=dict)

    def pick(self, queues: Sequence[MessageQueue], last: MessageQueue | None = None) -> MessageQueue:
        """The queue of the next try; `last` is the one that just failed.

        Available and another broker, else reachable and another broker, else another broker, else another queue of
        that broker, else the same again: a send always goes somewhere. `queues` must not be empty.
        """
        topic = queues[0].topic
        first = self._next.get(topic, self.start)
        self._next[topic] = first + 1
        turn = [queues[(first + step) % len(queues)] for step in range(len(queues))]
        others = [queue for queue in turn if last is None or queue.broker != last.broker]
        for fits in (self.isolation.is_available, self.isolation.is_reachable):
            for queue in others:
                if fits(queue.broker):
                    return queue
        return next(iter(others), next((queue for queue in turn if queue != last), turn[0]))
