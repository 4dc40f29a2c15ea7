"""Park fetches and pulls until messages arrive or a deadline passes.

A parked request waits for any of its queues. It is woken by the first arrival or by its deadline. If it belongs to a
session, a newer request of that session wakes it too, so that a client can change its queues without delay. If its
connection ends, the code that parked it removes it. A *standing* request stays parked through arrivals: it is woken by
the first arrival after its last `take_arrivals`. It may also be offered a single message that was just stored; if it
takes that message, it is not woken for it.

The cost of parking, waking and removing does not depend on the number of parked requests: an arrival touches only the
requests of its queue, and a sweep only those whose deadline has passed. If very many have to be woken, this is done in
steps, between which the event loop serves others. If more messages arrive meanwhile, all requests of the queue are
woken once more, however many arrivals there are. No I/O, injected clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

_Key = TypeVar("_Key")
QueueKey = tuple[str, int]
#: Called with the queue, the message's offset, its physical offset and its record's size in bytes.
TakeNext = Callable[[QueueKey, int, int, int], bool]

#: The granularity of deadlines; a request is woken at most this long (and a sweep's pause) after its deadline.
TICK_SECONDS = 0.1
#: When this many requests are parked, another one is answered at once (RocketMQ's maxPopPollingSize).
MAX_PARKED = 100_000
#: How many requests one step wakes, where those of many queues count more: some ten milliseconds.
_STEP_WORK: Final = 4_000
#: To how many parked requests a message that was just stored is offered.
_MAX_OFFERS: Final = 64


def _at_once(call: Callable[[], None]) -> None:
    """Run `call` at once; the default of `later` if nothing else needs the event loop."""
    call()


@dataclass(slots=True, eq=False)
class ParkedRequest:
    """One parked request, with the function `wake`.

    `wake` is called once: at an arrival, at the deadline, or because of a newer request of the session. For a standing
    request, `wake` is called again for arrivals after each `take_arrivals`, and a last time when the request ends.
    """

    queues: tuple[QueueKey, ...]
    tick: int
    wake: Callable[[], None]
    session: str | None
    standing: bool = False
    #: Called with the next message of one of the queues before readers see it; returns whether the request took it.
    take_next: TakeNext | None = None
    #: The topics for all of whose queues the request waits, in addition to `queues`.
    topics: tuple[str, ...] = ()
    #: Whether the request is no longer parked.
    ended: bool = False
    #: Whether it ended because of a newer request of its session.
    superseded: bool = False
    _arrivals: dict[QueueKey, None] = field(default_factory=dict)

    def take_arrivals(self) -> Collection[QueueKey]:
        """Return the queues that got messages since the last call, in the order of arrival."""
        taken, self._arrivals = self._arrivals, {}
        return taken

    def arrived(self, queue: QueueKey) -> None:
        """Record an arrival in one of the queues; for `LongPollingService`."""
        new = not self._arrivals
        self._arrivals[queue] = None
        if new:
            self.wake()


@dataclass(slots=True)
class LongPollingService:
    """All parked requests of a broker. `clock` is monotonic seconds."""

    clock: Callable[[], float]
    #: Runs the next step in a later iteration of the event loop.
    later: Callable[[Callable[[], None]], object] = _at_once
    #: Whether the broker is stopping; no request should park then.
    closed: bool = False
    _by_queue: dict[QueueKey, set[ParkedRequest]] = field(default_factory=dict)
    _by_topic: dict[str, set[ParkedRequest]] = field(default_factory=dict)
    _by_tick: dict[int, set[ParkedRequest]] = field(default_factory=dict)
    _by_session: dict[str, ParkedRequest] = field(default_factory=dict)
    _swept: int = 0
    _count: int = 0
    #: The request that took the message whose arrival is reported next.
    _taker: ParkedRequest | None = None
    #: By queue, the requests still to be woken for an arrival; and the queues with further arrivals since.
    _waking: dict[QueueKey, list[ParkedRequest]] = field(default_factory=dict)
    _again: set[QueueKey] = field(default_factory=set)
    #: The ticks of the deadlines that have passed.
    _due: deque[int] = field(default_factory=deque)
    _expiring: bool = False

    def __post_init__(self) -> None:
        self._swept = math.floor(self.clock() / TICK_SECONDS)

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Return True if no further request should park."""
        return self._count >= MAX_PARKED

    def park(
        self,
        queues: Iterable[QueueKey],
        deadline: float,
        wake: Callable[[], None],
        *,
        session: str | None = None,
        standing: bool = False,
        take_next: TakeNext | None = None,
        topics: Iterable[str] = (),
    ) -> ParkedRequest:
        """Park a request on any of `queues` until `deadline`, a time of the clock.

        An older request of `session` is woken now.

        Args:
            topics: also wait for all queues of these topics, at the cost of one queue each.
        """
        tick = max(math.ceil(deadline / TICK_SECONDS), self._swept + 1)
        parked = ParkedRequest(tuple(queues), tick, wake, session, standing, take_next, tuple(topics))
        if session is not None:
            self.supersede(session)
            self._by_session[session] = parked
        for queue in parked.queues:
            self._by_queue.setdefault(queue, set()).add(parked)
        for topic in parked.topics:
            self._by_topic.setdefault(topic, set()).add(parked)
        self._by_tick.setdefault(tick, set()).add(parked)
        self._count += 1
        return parked

    def supersede(self, session: str) -> None:
        """Wake the parked request of `session`, if there is one."""
        older = self._by_session.get(session)
        if older is not None:
            self.remove(older)
            older.superseded = True
            older.wake()

    def offer(self, queue: QueueKey, offset: int, physical_offset: int, size: int) -> None:
        """Offer a message that was just stored to the parked requests of its queue.

        The arrival of the message has to be reported next. The first request that takes the message is not woken for
        it.
        """
        if not self._count:  # the usual case for messages that are stored one by one
            return
        for parked in islice(self._by_queue.get(queue, ()), _MAX_OFFERS):
            if parked.take_next is not None and parked.take_next(queue, offset, physical_offset, size):
                self._taker = parked
                return

    def end_offer(self) -> None:
        """End an offer, so that the next arrival counts as another message.

        Call it whether or not the arrival of the offered message was reported.
        """
        self._taker = None

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Wake all requests parked on `queues`, except one that took the offered message."""
        taker, self._taker = self._taker, None
        if not self._count:
            return
        goes_on, work = bool(self._waking), _STEP_WORK
        fresh: dict[QueueKey, list[ParkedRequest]] = {}
        for queue in queues:
            if queue in self._waking:
                self._again.add(queue)
            elif queue not in fresh and (waiting := self._waiting_for(queue)):
                fresh[queue] = waiting
        self._waking |= fresh
        try:
            for queue, waiting in fresh.items():
                work = self._wake(queue, waiting, work, taker)
                if not waiting:
                    del self._waking[queue]
        finally:  # if a `wake` raised, the others are woken in the next turn
            if self._waking and not goes_on:
                self.later(self._wake_more)

    def _waiting_for(self, queue: QueueKey) -> list[ParkedRequest]:
        waiting = list(self._by_queue.get(queue, ()))
        if self._by_topic:
            waiting += self._by_topic.get(queue[0], ())
        return waiting

    def _wake(
        self, queue: QueueKey, waiting: list[ParkedRequest], work: int, taker: ParkedRequest | None = None
    ) -> int:
        """Wake some of a queue's requests and remove them from `waiting`; return the remaining work."""
        while waiting and work > 0:
            parked = waiting.pop()
            work -= 1
            if parked is taker or parked.ended:
                continue
            if not parked.standing:
                work -= len(parked.queues)
                self.remove(parked)
            parked.arrived(queue)
        return work

    def _wake_more(self) -> None:
        work = _STEP_WORK
        try:
            for queue in list(self._waking):
                waiting = self._waking[queue]
                work = self._wake(queue, waiting, work)
                if waiting:
                    break
                del self._waking[queue]
                if queue in self._again:  # after those of other queues
                    self._again.discard(queue)
                    if waiting := self._waiting_for(queue):
                        self._waking[queue] = waiting
        finally:
            if self._waking:
                self.later(self._wake_more)

    def expire(self) -> None:
        """Wake the requests whose deadline has passed."""
        now = math.floor(self.clock() / TICK_SECONDS)
        self._due.extend(range(self._swept + 1, now + 1))
        self._swept = now
        if not self._expiring:
            self._expire()

    def _expire(self) -> None:
        work = _STEP_WORK
        try:
            while self._due:
                waiting = self._by_tick.get(self._due[0], set())
                while waiting and work > 0:
                    parked = waiting.pop()
                    work -= 1 + len(parked.queues)
                    self.remove(parked)
                    parked.wake()
                if waiting:
                    break
                self._due.popleft()
        finally:
            self._expiring = bool(self._due)
            if self._expiring:
                self.later(self._expire)

    def close(self) -> None:
        """Wake all requests, because the broker is stopping."""
        self.closed = True
        for waiting in list(self._by_tick.values()):
            for parked in list(waiting):
                self.remove(parked)
                parked.wake()

    def remove(self, parked: ParkedRequest) -> None:
        """Remove a request without waking it; do nothing if it was removed already."""
        self._count -= not parked.ended
        parked.ended = True
        if parked.session is not None and self._by_session.get(parked.session) is parked:
            del self._by_session[parked.session]
        for queue in parked.queues:
            _discard(self._by_queue, queue, parked)
        for topic in parked.topics:
            _discard(self._by_topic, topic, parked)
        _discard(self._by_tick, parked.tick, parked)


def _discard(table: dict[_Key, set[ParkedRequest]], key: _Key, parked: ParkedRequest) -> None:
    waiting = table.get(key)
    if waiting is not None:
        waiting.discard(parked)
        if not waiting:
            del table[key]
