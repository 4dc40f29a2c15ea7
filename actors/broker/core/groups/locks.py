"""Which client consumes a queue in order: RocketMQ's queue locks. No I/O, injected clock.

A lock belongs to a client id of a group. It lasts `LEASE_SECONDS` from the last time it was asked for, and ends at once
when the client gives it back, leaves its group or is forgotten by the broker.

Each time a lock passes to a client it has a term, a number that it never had before. A client that is given its lock
again, and sees another term, knows that somebody else may have had the queue meanwhile.

Locks are kept in memory. A broker that was here before may have given some that are still trusted, so nobody may be
told of one until they have run out (`rest`). Who comes first has it meanwhile.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from raymq.actors.errors import ServerBusy
from raymq.actors.protocol import LEASE_SECONDS

#: So many locks are held at a time.
MOST_LOCKS = 200_000
_LOOK_SECONDS = 1.0

#: (topic, queue id)
Queue = tuple[str, int]


def _terms() -> Iterator[int]:
    """Numbers that no other life of a broker has given."""
    return itertools.count(secrets.randbits(60))


@dataclass(slots=True)
class _Lock:
    client_id: str
    expires_at: float
    term: int


@dataclass(slots=True)
class QueueLocks:
    """The locks of one broker's queues. `clock` is seconds that nobody sets."""

    clock: Callable[[], float]
    _groups: dict[str, dict[Queue, _Lock]] = field(default_factory=dict)
    _terms: Iterator[int] = field(default_factory=_terms)
    _rests_until: float = 0.0
    _count: int = 0
    #: When those that are over are looked for next, if there are too many.
    _look_at: float = 0.0

    def rest(self, seconds: float) -> None:
        """Tell nobody of a lock for so long: those of an earlier life of this broker may be trusted until then."""
        self._rests_until = self.clock() + seconds

    @property
    def rest_seconds(self) -> float:
        """How long the answer to who asks for a lock has to wait; 0: not at all."""
        return max(0.0, self._rests_until - self.clock())

    def lock(self, group: str, client_id: str, queues: Collection[Queue]) -> dict[Queue, int]:
        """Take or renew what is free or the client's own; those of `queues` that it holds now, and their terms.

        ServerBusy: there would be more locks than there may be.
        """
        now = self.clock()
        if self._would_be(group, queues) > MOST_LOCKS and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._drop_expired(now)
        if self._would_be(group, queues) > MOST_LOCKS:
            raise ServerBusy(f"{MOST_LOCKS} queues are locked, more may not be")
        locks = self._groups.setdefault(group, {})
        held = {}
        for queue in queues:
            known = locks.get(queue)
            if known is not None and known.client_id == client_id:
                known.expires_at = now + LEASE_SECONDS
            elif known is None or known.expires_at <= now:
                self._count += known is None
                known = locks[queue] = _Lock(client_id, now + LEASE_SECONDS, next(self._terms))
            else:
                continue
            held[queue] = known.term
        if not locks:
            del self._groups[group]
        return held

    def _would_be(self, group: str, queues: Collection[Queue]) -> int:
        """How many locks there are with those of `queues`: one that is renewed is there already."""
        locks = self._groups.get(group, {})
        return self._count + sum(queue not in locks for queue in queues)

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Give back those of `queues` that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if queue in locks and locks[queue].client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def leave(self, group: str, client_id: str) -> None:
        """The client left the group: all its locks there end."""
        self._drop(group, lambda _, lock: lock.client_id == client_id)

    def forget(self, client_ids: AbstractSet[str]) -> None:
        """The clients are gone: all their locks end. It costs what there is of locks, however many clients they are."""
        for group in list(self._groups) if client_ids else ():
            self._drop(group, lambda _, lock: lock.client_id in client_ids)

    def any_held(self, group: str) -> bool:
        """Whether some client consumes a queue of `group` in order at the moment."""
        now = self.clock()
        return any(lock.expires_at > now for lock in self._groups.get(group, {}).values())

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """The client id that holds a queue's lock, if any."""
        lock = self._groups.get(group, {}).get((topic, queue_id))
        return lock.client_id if lock is not None and lock.expires_at > self.clock() else None

    def _drop(self, group: str, gone: Callable[[Queue, _Lock], bool]) -> None:
        known = self._groups.pop(group, {})
        locks = {queue: lock for queue, lock in known.items() if not gone(queue, lock)}
        self._count -= len(known) - len(locks)
        if locks:
            self._groups[group] = locks

    def _drop_expired(self, now: float) -> None:
        for group in list(self._groups):
            self._drop(group, lambda _, lock: lock.expires_at <= now)

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert all(self._groups.values()), "a group without locks stays listed"
        assert self._count == sum(map(len, self._groups.values()))
        terms = [lock.term for locks in self._groups.values() for lock in locks.values()]
        assert len(terms) == len(set(terms)), "two locks have one term"
