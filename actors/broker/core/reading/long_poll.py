"""Parked fetches and pulls: who waits for which queue, and until when. No I/O, injected clock.

A parked request waits for any of its queues. It is woken by the first arrival, by its deadline, or, where it belongs to
a session, by a newer one of that session, so that a client changes what it waits for without waiting. One whose
connection ends is taken out by whoever parked it. A *standing* one stays through arrivals: it is woken by the first of
those that it has not taken yet. It may also be offered a single message that was just stored, and if it takes that, it
is not woken for it.

Parking, waking and taking out cost the same however many are parked: an arrival touches the waiters of its queue, and a
sweep those whose time is over. Where these are very many they are woken in steps, between which others have the loop:
arrivals that come meanwhile have all of them woken once more, however many arrivals there are.
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
#: Told the queue, the message's offset there, where it lies in the log, and its record's bytes.
TakeNext = Callable[[QueueKey, int, int, int], bool]

#: Deadlines are kept in steps of this; a parked request is woken at most this long (and a sweep's pause) after its own.
TICK_SECONDS = 0.1
#: With so many requests parked, another one is answered at once (RocketMQ's maxPopPollingSize).
MAX_PARKED = 100_000
#: In one step so many are woken, those that wait for many queues counting more: some ten milliseconds.
_STEP_WORK: Final = 4_000
#: So many of those who wait are offered a message that was just stored.
_MOST_OFFERS: Final = 64


def _at_once(call: Callable[[], None]) -> None:
    """When the next step is made where nobody else waits for the loop."""
    call()


@dataclass(slots=True, eq=False)
class Parked:
    """One parked request. `wake` is called once, when an arrival, the deadline or its session ends its wait.

    Of a standing one it is called again for arrivals after each `take_arrivals`, and a last time when it ends.
    """

    queues: tuple[QueueKey, ...]
    tick: int
    wake: Callable[[], None]
    session: str | None
    standing: bool = False
    #: Offered what comes next in one of the queues, before the store's readers see it; whether it took that.
    take_next: TakeNext | None = None
    #: It waits for all queues of these, besides.
    topics: tuple[str, ...] = ()
    #: It is parked no more;
    ended: bool = False
    #: because of a newer one of its session.
    superseded: bool = False
    _arrivals: dict[QueueKey, None] = field(default_factory=dict)

    def take_arrivals(self) -> Collection[QueueKey]:
        """The queues that got something since the last call, in the order of their arrivals."""
        taken, self._arrivals = self._arrivals, {}
        return taken

    def arrived(self, queue: QueueKey) -> None:
        """For `LongPolls`: one of the queues got something."""
        new = not self._arrivals
        self._arrivals[queue] = None
        if new:
            self.wake()


@dataclass(slots=True)
class LongPolls:
    """All parked requests of a broker. `clock` is monotonic seconds."""

    clock: Callable[[], float]
    #: Has the next step made in a later turn of the loop.
    later: Callable[[Callable[[], None]], object] = _at_once
    #: The broker is stopping: nobody should park again.
    closed: bool = False
    _by_queue: dict[QueueKey, set[Parked]] = field(default_factory=dict)
    _by_topic: dict[str, set[Parked]] = field(default_factory=dict)
    _by_tick: dict[int, set[Parked]] = field(default_factory=dict)
    _by_session: dict[str, Parked] = field(default_factory=dict)
    _swept: int = 0
    _count: int = 0
    #: Who took the message whose arrival comes next.
    _taker: Parked | None = None
    #: By queue, those who are still to be woken for what has arrived; and where more has arrived since.
    _waking: dict[QueueKey, list[Parked]] = field(default_factory=dict)
    _again: set[QueueKey] = field(default_factory=set)
    #: Deadlines that have passed.
    _due: deque[int] = field(default_factory=deque)
    _expiring: bool = False

    def __post_init__(self) -> None:
        self._swept = math.floor(self.clock() / TICK_SECONDS)

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether nobody should park besides those who do."""
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
    ) -> Parked:
        """Wait for any of `queues` until `deadline` (by the clock); an older request of `session` is woken now.

        Args:
            topics: wait for whatever queue of these, besides, at the price of one.
        """
        tick = max(math.ceil(deadline / TICK_SECONDS), self._swept + 1)
        parked = Parked(tuple(queues), tick, wake, session, standing, take_next, tuple(topics))
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
        """Wake what `session` has parked, if anything."""
        older = self._by_session.get(session)
        if older is not None:
            self.remove(older)
            older.superseded = True
            older.wake()

    def offer(self, queue: QueueKey, offset: int, physical_offset: int, size: int) -> None:
        """A message was stored, and its arrival comes next: let somebody who waits for it take it at once."""
        if not self._count:  # as for most that are stored one by one
            return
        for parked in islice(self._by_queue.get(queue, ()), _MOST_OFFERS):
            if parked.take_next is not None and parked.take_next(queue, offset, physical_offset, size):
                self._taker = parked
                return

    def end_offer(self) -> None:
        """Whether or not an arrival came of what was offered: the next one is of another message."""
        self._taker = None

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Messages arrived: wake everyone who waits for one of `queues`, and has not taken what was offered."""
        taker, self._taker = self._taker, None
        if not self._count:
            return
        goes_on, work = bool(self._waking), _STEP_WORK
        fresh: dict[QueueKey, list[Parked]] = {}
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
        finally:  # also where one could not be woken: the others are, in the next turn
            if self._waking and not goes_on:
                self.later(self._wake_more)

    def _waiting_for(self, queue: QueueKey) -> list[Parked]:
        waiting = list(self._by_queue.get(queue, ()))
        if self._by_topic:
            waiting += self._by_topic.get(queue[0], ())
        return waiting

    def _wake(self, queue: QueueKey, waiting: list[Parked], work: int, taker: Parked | None = None) -> int:
        """Wake some of those who wait for a queue, and take them from the list; what is left of the step's work."""
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
                if queue in self._again:  # behind those of other queues
                    self._again.discard(queue)
                    if waiting := self._waiting_for(queue):
                        self._waking[queue] = waiting
        finally:
            if self._waking:
                self.later(self._wake_more)

    def expire(self) -> None:
        """Wake those whose time is over."""
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
        """The broker is stopping: wake everyone."""
        self.closed = True
        for waiting in list(self._by_tick.values()):
            for parked in list(waiting):
                self.remove(parked)
                parked.wake()

    def remove(self, parked: Parked) -> None:
        """Take one out without waking it; nothing if it has gone already."""
        self._count -= not parked.ended
        parked.ended = True
        if parked.session is not None and self._by_session.get(parked.session) is parked:
            del self._by_session[parked.session]
        for queue in parked.queues:
            _discard(self._by_queue, queue, parked)
        for topic in parked.topics:
            _discard(self._by_topic, topic, parked)
        _discard(self._by_tick, parked.tick, parked)

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        parked = {p for waiting in self._by_tick.values() for p in waiting}
        assert len(parked) == self._count
        assert {p for waiting in self._by_queue.values() for p in waiting} == {p for p in parked if p.queues}
        assert {p for waiting in self._by_topic.values() for p in waiting} == {p for p in parked if p.topics}
        assert set(self._by_session.values()) == {p for p in parked if p.session is not None}
        assert all(self._by_queue.values()), "an empty set stays listed"
        assert all(self._by_topic.values()), "an empty set stays listed"
        assert all(self._by_tick.values()), "an empty set stays listed"


def _discard(table: dict[_Key, set[Parked]], key: _Key, parked: Parked) -> None:
    waiting = table.get(key)
    if waiting is not None:
        waiting.discard(parked)
        if not waiting:
            del table[key]
