"""Parked fetches and pulls: who waits for which queue, and until when. No I/O, injected clock.

A parked request waits for any of its queues. It is woken by the first arrival, by its deadline, or, where it belongs to
a session, by a newer one of that session, so that a client changes what it waits for without waiting. One whose
connection ends is taken out by whoever parked it. A *standing* one stays through arrivals: it is woken by the first of
those that it has not taken yet. It may also be offered a single message that was just stored, and if it takes that, it
is not woken for it.

Parking, waking and taking out cost the same however many are parked: an arrival touches the waiters of its queue, and a
sweep those whose time is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

_Key = TypeVar("_Key")
QueueKey = tuple[str, int]
#: Told the queue, the message's offset there, where it lies in the log, and its record's bytes.
TakeNext = Callable[[QueueKey, int, int, int], bool]

#: Deadlines are kept in steps of this; a parked request is woken at most this long (and a sweep's pause) after its own.
TICK_SECONDS = 0.1
#: With so many requests parked, another one is answered at once (RocketMQ's maxPopPollingSize).
MAX_PARKED = 100_000


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
        for parked in self._by_queue.get(queue, ()):
            if parked.take_next is not None and parked.take_next(queue, offset, physical_offset, size):
                self._taker = parked
                return

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Messages arrived: wake everyone who waits for one of `queues`, and has not taken what was offered."""
        taker, self._taker = self._taker, None
        for queue in queues:
            waiting = list(self._by_queue.get(queue, ()))
            if self._by_topic:
                waiting += self._by_topic.get(queue[0], ())
            for parked in waiting:
                if parked is taker:
                    continue
                if not parked.standing:
                    self.remove(parked)
                parked.arrived(queue)

    def expire(self) -> None:
        """Wake those whose time is over."""
        now = math.floor(self.clock() / TICK_SECONDS)
        first, self._swept = self._swept + 1, now
        for tick in range(first, now + 1):
            for parked in list(self._by_tick.get(tick, ())):
                self.remove(parked)
                parked.wake()

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
