"""Manage RocketMQ's queue locks, which give a client the ordered consumption of a queue.

A lock belongs to a client id of a group. It expires `LEASE_SECONDS` after it was last requested. It ends at once when
the client releases it, leaves its group or is removed by the broker.

Each time a lock passes to a client it gets a term, a number that was never used before. If a client gets its lock again
with another term, another client may have had the queue meanwhile.

Locks are kept in memory only. An earlier process of this broker may have granted locks that are still in use, so no
grant may be reported until these have expired (`block_grants`). Meanwhile the first client that requests a lock already
holds it. No I/O, injected clock.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from raymq.actors.errors import ServerBusy
from raymq.actors.protocol import LEASE_SECONDS

#: At most this many locks exist at a time.
MAX_LOCKS = 200_000
_LOOK_SECONDS = 1.0

#: (topic, queue id)
Queue = tuple[str, int]


def _terms() -> Iterator[int]:
    """Return numbers that no other process of a broker has used."""
    return itertools.count(secrets.randbits(60))


@dataclass(slots=True)
class _Lock:
    client_id: str
    expires_at: float
    term: int


@dataclass(slots=True)
class RebalanceLockManager:
    """The locks of one broker's queues.

    `clock` is in seconds and is never set back or forward.
    """

    clock: Callable[[], float]
    _groups: dict[str, dict[Queue, _Lock]] = field(default_factory=dict)
    _terms: Iterator[int] = field(default_factory=_terms)
    _blocked_until: float = 0.0
    _count: int = 0
    #: When expired locks are searched for next, if there are too many.
    _look_at: float = 0.0

    def block_grants(self, seconds: float) -> None:
        """Delay the response of every grant for `seconds`.

        Locks of an earlier process of this broker may be in use until then.
        """
        self._blocked_until = self.clock() + seconds

    @property
    def blocked_seconds(self) -> float:
        """Return for how many seconds the response to a lock request must be delayed.

        0 means not at all.
        """
        return max(0.0, self._blocked_until - self.clock())

    def lock(self, group: str, client_id: str, queues: Collection[Queue]) -> dict[Queue, int]:
        """Take or renew locks of `queues` that are free or the client's own.

        Return those that the client holds now, with their terms. Raise ServerBusy if the limit of locks would be
        exceeded.
        """
        now = self.clock()
        if self._would_be(group, queues) > MAX_LOCKS and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._drop_expired(now)
        if self._would_be(group, queues) > MAX_LOCKS:
            raise ServerBusy(f"{MAX_LOCKS} queues are locked, which is the limit")
        locks = self._groups.setdefault(group, {})
        terms = {}
        for queue in queues:
            known = locks.get(queue)
            if known is not None and known.client_id == client_id:
                known.expires_at = now + LEASE_SECONDS
            elif known is None or known.expires_at <= now:
                self._count += known is None
                known = locks[queue] = _Lock(client_id, now + LEASE_SECONDS, next(self._terms))
            else:
                continue
            terms[queue] = known.term
        if not locks:
            del self._groups[group]
        return terms

    def _would_be(self, group: str, queues: Collection[Queue]) -> int:
        """Return how many locks there would be with those of `queues`.

        A renewed lock is not counted twice.
        """
        locks = self._groups.get(group, {})
        return self._count + sum(queue not in locks for queue in queues)

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release those locks of `queues` that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if queue in locks and locks[queue].client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def leave(self, group: str, client_id: str) -> None:
        """End all locks of a client that left the group."""
        self._drop(group, lambda _, lock: lock.client_id == client_id)

    def forget(self, client_ids: AbstractSet[str]) -> None:
        """End all locks of clients that were removed.

        The cost depends on the number of locks, not on that of clients.
        """
        for group in list(self._groups) if client_ids else ():
            self._drop(group, lambda _, lock: lock.client_id in client_ids)

    def has_locks(self, group: str) -> bool:
        """Return True if a client now holds a lock of a queue of `group`."""
        now = self.clock()
        return any(lock.expires_at > now for lock in self._groups.get(group, {}).values())

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """Return the client id that holds a queue's lock, if any."""
        lock = self._groups.get(group, {}).get((topic, queue_id))
        return lock.client_id if lock is not None and lock.expires_at > self.clock() else None

    def _drop(self, group: str, is_dropped: Callable[[Queue, _Lock], bool]) -> None:
        known = self._groups.pop(group, {})
        locks = {queue: lock for queue, lock in known.items() if not is_dropped(queue, lock)}
        self._count -= len(known) - len(locks)
        if locks:
            self._groups[group] = locks

    def _drop_expired(self, now: float) -> None:
        for group in list(self._groups):
            self._drop(group, lambda _, lock: lock.expires_at <= now)
