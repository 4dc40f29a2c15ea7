"""Parked fetches: who waits for which queue, and until when. No I/O, injected clock.

A parked fetch waits for any of its queues. It is woken by the first arrival, by its deadline, by its connection's end,
or by a newer fetch of the same session, so that a client changes what it waits for without waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class Parked:
    """One parked fetch. `wake` is called once, when it leaves the table for any reason."""

    session: str
    queues: tuple[QueueKey, ...]
    deadline: float
    wake: Callable[[], None]


@dataclass(slots=True)
class LongPolls:
    """All parked fetches of a broker: waking costs as much as there are waiters of that queue."""

    clock: Callable[[], float]
    _by_queue: dict[QueueKey, set[Parked]] = field(default_factory=lambda: defaultdict(set))
    _by_session: dict[str, Parked] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_session)

    def park(self, session: str, queues: Iterable[QueueKey], seconds: float, wake: Callable[[], None]) -> Parked:
        """Wait for any of `queues` for at most `seconds`; an older fetch of `session` is woken now."""
        self.supersede(session)
        parked = Parked(session, tuple(queues), self.clock() + seconds, wake)
        self._by_session[session] = parked
        for queue in parked.queues:
            self._by_queue[queue].add(parked)
        return parked

    def supersede(self, session: str) -> None:
        """Wake what `session` has parked, if anything."""
        older = self._by_session.get(session)
        if older is not None:
            self.remove(older)
            older.wake()

    def arrived(self, queues: Iterable[QueueKey]) -> None:
        """Messages arrived: wake everyone who waits for one of `queues`."""
        for queue in queues:
            for parked in list(self._by_queue.get(queue, ())):
                self.remove(parked)
                parked.wake()

    def expire(self) -> None:
        """Wake those whose time is over."""
        now = self.clock()
        for parked in [p for p in self._by_session.values() if p.deadline <= now]:
            self.remove(parked)
            parked.wake()

    def remove(self, parked: Parked) -> None:
        """Take one out without waking it; nothing if it has gone already."""
        if self._by_session.get(parked.session) is parked:
            del self._by_session[parked.session]
        for queue in parked.queues:
            waiting = self._by_queue.get(queue)
            if waiting is not None:
                waiting.discard(parked)
                if not waiting:
                    del self._by_queue[queue]

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        sessions = set(self._by_session.values())
        assert {p for waiting in self._by_queue.values() for p in waiting} == {p for p in sessions if p.queues}
        assert all(self._by_queue.values()), "an empty set stays listed"
