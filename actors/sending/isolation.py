"""Pick the queue of a send, and avoid brokers that failed recently (failure isolation).

A strategy ranks the brokers by the outcomes of tries; the picker goes round robin among those with the best rank. The
module performs no I/O.

The strategies have the names that a producer accepts (`ISOLATION_STRATEGIES`). Source of the isolation by latency:
RocketMQ's MQFaultStrategy. Its table does not isolate a broker that takes a few hundred milliseconds for every answer.
Here such a broker gets a window as well, but only after several slow answers in a row: a single slow answer is not a
reason to avoid a broker.
"""

from __future__ import annotations

import enum
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from raymq.actors.protocol import MessageQueue


class TryOutcome(enum.Enum):
    """How a try ended, as far as its broker is the cause."""

    #: The broker accepted the message, or refused it because of the message itself.
    ANSWERED = "answered"
    #: The broker answered with an error of its own: busy, full, closing.
    REFUSED = "refused"
    #: The broker could not be reached, or did not answer.
    SILENT = "silent"


class Isolation(Protocol):
    """A strategy that ranks brokers. Used by one thread."""

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        """Record the outcome of a try that took `latency_ms`."""

    def rank(self, broker: str) -> int:
        """Return the broker's rank: 0 is best, and a lower rank is preferred.

        A rank never excludes a broker: if all brokers rank badly, the best of them still receives the message.
        """

    def suspects(self) -> list[str]:
        """Return the isolated brokers that a probe may free: those that did not answer.

        A broker that answers with errors is running, so a probe of it shows nothing.
        """

    def recovered(self, broker: str) -> None:
        """End the isolation of a suspect that has answered a probe."""


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

    def _fall_due(self) -> None:
        late = self.clock() - self._reset_at
        if late >= 0:
            self._flags.clear()
            self._reset_at += (late // self.period_seconds + 1) * self.period_seconds


#: The most failures that are remembered per broker: two brokers that always fail rank equally.
_REMEMBERED: Final = 1_000


@dataclass(slots=True)
class LeastFailuresIsolation:
    """Isolation whose rank is the number of failures in the last `window_seconds`.

    Without a window a single failure would cost a broker all traffic.
    """

    clock: Callable[[], float]
    window_seconds: float = 60.0
    _failed_at: dict[str, deque[float]] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:  # noqa: ARG002 - in the protocol
        """Count a failure."""
        if outcome is not TryOutcome.ANSWERED:
            self._failed_at.setdefault(broker, deque(maxlen=_REMEMBERED)).append(self.clock())
        if outcome is TryOutcome.SILENT:
            self._silent.add(broker)
        else:
            self._silent.discard(broker)

    def rank(self, broker: str) -> int:
        """Return the number of the broker's recent failures."""
        failures = self._failed_at.get(broker)
        if failures is None:
            return 0
        oldest = self.clock() - self.window_seconds
        while failures and failures[0] <= oldest:
            failures.popleft()
        if not failures:
            self._failed_at.pop(broker, None)
        return len(failures)

    def suspects(self) -> list[str]:
        """Return the brokers that did not answer the last try and still have recent failures."""
        return [broker for broker in sorted(self._silent) if self.rank(broker)]

    def recovered(self, broker: str) -> None:
        """Forget the broker's failures."""
        self._failed_at.pop(broker, None)
        self._silent.discard(broker)


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


#: The strategies by the names that a producer accepts.
ISOLATION_STRATEGIES: Final[dict[str | None, Callable[[Callable[[], float]], Isolation]]] = {
    "latency": LatencyIsolation,
    "quarantine": QuarantineIsolation,
    "flag": FlagIsolation,
    "least-failures": LeastFailuresIsolation,
    None: lambda _: NoIsolation(),
}


def make_isolation(name: str | None, clock: Callable[[], float]) -> Isolation:
    """Return a new strategy by name; `clock` is in seconds.

    Raise KeyError for an unknown name.
    """
    return ISOLATION_STRATEGIES[name](clock)


class SynchronizedIsolation:
    """The given strategy under a reentrant lock.

    A signal handler may take the lock again on a thread that it has interrupted during a send.
    """

    def __init__(self, inner: Isolation) -> None:
        self._inner = inner
        self._lock = threading.RLock()

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        """Record an outcome, as `Isolation.report`."""
        with self._lock:
            self._inner.report(broker, outcome, latency_ms)

    def rank(self, broker: str) -> int:
        """Return the broker's rank, as `Isolation.rank`."""
        with self._lock:
            return self._inner.rank(broker)

    def suspects(self) -> list[str]:
        """Return the suspects, as `Isolation.suspects`."""
        with self._lock:
            return self._inner.suspects()

    def recovered(self, broker: str) -> None:
        """End a broker's isolation, as `Isolation.recovered`."""
        with self._lock:
            self._inner.recovered(broker)


@dataclass(slots=True)
class QueuePicker:
    """Round robin over a topic's queues, with the ranks of `isolation`.

    A producer has one picker; `start` is its first index.
    """

    isolation: Isolation
    start: int = 0
    _next: dict[str, int] = field(default_factory=dict)

    def pick(self, queues: Sequence[MessageQueue], last: MessageQueue | None = None) -> MessageQueue:
        """Return the queue of the next try; `last` is the queue that just failed.

        After a failure it is a queue of the best-ranked other broker, round robin among brokers of the same rank.
        Without another broker it is another queue of the same broker, else the same queue again. `queues` must not be
        empty.
        """
        topic = queues[0].topic
        first = self._next.get(topic, self.start)
        self._next[topic] = first + 1
        due = queues[first % len(queues)]
        if last is None and not self.isolation.rank(due.broker):
            return due
        turn = [queues[(first + step) % len(queues)] for step in range(len(queues))]
        if last is None:
            others = turn
        else:
            others = [queue for queue in turn if queue.broker != last.broker]
            if not others:
                return next((queue for queue in turn if queue != last), turn[0])
        ranks = {queue.broker: self.isolation.rank(queue.broker) for queue in others}
        return min(others, key=lambda queue: ranks[queue.broker])

    def forget(self, topic: str) -> None:
        """Drop the state of a topic that the producer does not use any more."""
        self._next.pop(topic, None)
