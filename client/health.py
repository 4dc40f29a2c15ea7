"""How a consumer fares, as its program may ask it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import RayMQError, WorkFailed
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervision import Failure

#: So many of the messages that were set aside are remembered, the latest ones.
_REMEMBERED: Final = 100
#: Fetches from a broker that fail for so long are not those of a broker that restarts.
FAILING_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message that cannot be read, and was passed over: its queue, its offset there, and why."""

    queue: MessageQueue
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call of the listener that has begun and not ended: its messages' queue, and for how many seconds it runs."""

    queue: MessageQueue
    seconds: float


def hanging(running: Sequence[RunningCall], bound_seconds: float) -> Sequence[RunningCall]:
    """The calls that run, longest first, if all of them have run for longer than the bound; else nothing.

    While a single call is younger than that the listener goes on, however long others take.
    """
    if not all(call.seconds > bound_seconds for call in running):
        return []
    return sorted(running, key=lambda call: -call.seconds)


@dataclass(frozen=True, slots=True)
class FailingFetch:
    """Fetches from one broker that fail in a row: how many, for how many seconds, and the last one's error.

    One that is begun to be parked at a broker is no failure, however long nothing comes.
    """

    broker: str
    count: int
    seconds: float
    error: str

    @property
    def persists(self) -> bool:
        """Whether it fails for longer than a restart of the broker takes."""
        return self.seconds >= FAILING_SECONDS


class FailingFetches:
    """What fails of one consumer's fetches, by what is fetched. `clock` is monotonic seconds; any thread may look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: By fetch: its broker, since when it fails, how often, and with what.
        self._failing: dict[Hashable, tuple[str, float, int, str]] = {}

    def failed(self, fetch: Hashable, broker: str, begun_at: float, error: BaseException) -> None:
        """One more failed, which was begun at that time."""
        _, since, count, _ = self._failing.get(fetch, (broker, begun_at, 0, ""))
        self._failing[fetch] = broker, since, count + 1, str(error)

    def fails(self, fetch: Hashable) -> bool:
        """Whether it failed when it ended last."""
        return fetch in self._failing

    def over(self, fetch: Hashable) -> None:
        """It succeeded, or there is nothing to fetch."""
        self._failing.pop(fetch, None)

    def now(self) -> list[FailingFetch]:
        """What fails."""
        now = self._clock()
        return [
            FailingFetch(broker, count, now - since, error) for broker, since, count, error in [*self._failing.values()]
        ]


@dataclass(frozen=True, slots=True)
class Health:
    """A consumer's health.

    Attributes:
        running: it was started and not shut down.
        works: the names of what it has under way in the background.
        failures: what failed although nobody expected that, and began anew.
        set_aside: how many messages it passed over because they cannot be read; `last_set_aside` are the latest 100.
        hanging: the listener's calls, if all that run have run for longer than the consumer's `hang_after`.
        fetches: the brokers that it gets no answers from now.
        ended_by: why it has ended by itself: SubscriptionMismatch, where a higher `subscription_version` is in force.
    """

    running: bool
    works: Sequence[str] = ()
    failures: Sequence[Failure] = ()
    set_aside: int = 0
    last_set_aside: Sequence[SetAside] = ()
    hanging: Sequence[RunningCall] = ()
    fetches: Sequence[FailingFetch] = ()
    ended_by: RayMQError | None = None

    @property
    def ok(self) -> bool:
        """Whether it runs, its listener does not hang, and nothing of it fails again and again."""
        fails = any(failure.persists for failure in self.failures) or any(fetch.persists for fetch in self.fetches)
        return self.running and not self.hanging and not fails


class Aside:
    """What one consumer passed over. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self._last: deque[SetAside] = deque(maxlen=_REMEMBERED)

    def add(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """One more."""
        with self._lock:
            self.count += 1
            self._last.append(SetAside(queue, offset, str(error) or repr(error)))

    @property
    def last(self) -> list[SetAside]:
        """The latest ones, in their order."""
        with self._lock:
            return list(self._last)


def raise_persistent(failures: Sequence[Failure]) -> None:
    """WorkFailed for the first of them that persists."""
    for failure in failures:
        if failure.persists:
            raise WorkFailed(failure.work, failure.error, failure.in_a_row)
