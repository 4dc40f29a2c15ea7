"""Report the health of a consumer to its program."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import RayMQError, WorkFailed
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervisor import WorkFailure

#: The number of the latest skipped messages that are kept.
_REMEMBERED: Final = 100
#: Fetches from a broker that fail for longer than this are not explained by a restart of the broker.
FAILING_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message that was skipped because it cannot be read.

    Its queue, its offset there, and the reason.
    """

    queue: MessageQueue
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A running call of the listener.

    The queue of its messages, and for how many seconds it has been running.
    """

    queue: MessageQueue
    seconds: float


def hanging(running: Sequence[RunningCall], bound_seconds: float) -> Sequence[RunningCall]:
    """Return the running calls, longest first, if all of them exceed the bound.

    Otherwise return nothing: if a single call has run for less than the bound, the listener makes progress, however
    long the other calls take.
    """
    if not all(call.seconds > bound_seconds for call in running):
        return []
    return sorted(running, key=lambda call: -call.seconds)


@dataclass(frozen=True, slots=True)
class FailingFetch:
    """Consecutive failures of fetches from one broker.

    Attributes:
        broker: the broker's name.
        count: the number of failures in a row.
        seconds: the time since the first of them.
        error: the last error.

    A fetch that the broker parks is no failure, however long it finds nothing.
    """

    broker: str
    count: int
    seconds: float
    error: str

    @property
    def persists(self) -> bool:
        """Return True if it has failed for longer than a restart of the broker takes."""
        return self.seconds >= FAILING_SECONDS


class FetchFailures:
    """The failing fetches of one consumer.

    `clock` returns monotonic seconds. Any thread may read the failures.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: By fetch: its broker, the time of the first failure, the number of failures, and the last error.
        self._failing: dict[Hashable, tuple[str, float, int, str]] = {}

    def failed(self, fetch: Hashable, broker: str, begun_at: float, error: BaseException) -> None:
        """Record a failure of a fetch that began at `begun_at`."""
        _, since, count, _ = self._failing.get(fetch, (broker, begun_at, 0, ""))
        self._failing[fetch] = broker, since, count + 1, str(error)

    def fails(self, fetch: Hashable) -> bool:
        """Return True if the fetch failed the last time."""
        return fetch in self._failing

    def over(self, fetch: Hashable) -> None:
        """Remove a fetch that succeeded, or that has nothing to fetch."""
        self._failing.pop(fetch, None)

    def now(self) -> list[FailingFetch]:
        """Return the fetches that fail now."""
        now = self._clock()
        return [
            FailingFetch(broker, count, now - since, error) for broker, since, count, error in [*self._failing.values()]
        ]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a consumer.

    Attributes:
        running: it was started and not shut down.
        works: the names of its background tasks.
        failures: background tasks that failed with an unexpected error and were restarted.
        set_aside: how many messages it skipped because they cannot be read; `last_set_aside` are the latest 100.
        hanging: the listener's running calls, if all of them have run for longer than the consumer's `hang_after`.
        fetches: the brokers from which its fetches fail now.
        ended_by: the error for which it has shut down by itself: SubscriptionMismatch, where a higher
            `subscription_version` is in force.
    """

    running: bool
    works: Sequence[str] = ()
    failures: Sequence[WorkFailure] = ()
    set_aside: int = 0
    last_set_aside: Sequence[SetAside] = ()
    hanging: Sequence[RunningCall] = ()
    fetches: Sequence[FailingFetch] = ()
    ended_by: RayMQError | None = None

    @property
    def ok(self) -> bool:
        """Return True if the consumer runs, its listener does not hang, and no failure persists."""
        fails = any(failure.persists for failure in self.failures) or any(fetch.persists for fetch in self.fetches)
        return self.running and not self.hanging and not fails


class SkippedMessages:
    """The unreadable messages that one consumer skipped. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self._last: deque[SetAside] = deque(maxlen=_REMEMBERED)

    def add(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """Add one skipped message."""
        with self._lock:
            self.count += 1
            self._last.append(SetAside(queue, offset, str(error) or repr(error)))

    @property
    def last(self) -> list[SetAside]:
        """Return the latest skipped messages, oldest first."""
        with self._lock:
            return list(self._last)


def raise_persistent(failures: Sequence[WorkFailure]) -> None:
    """Raise WorkFailed for the first failure that persists, if any."""
    for failure in failures:
        if failure.persists:
            raise WorkFailed(failure.work, failure.error, failure.in_a_row)
