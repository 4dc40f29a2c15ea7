"""Which of its queue locks a member of an ordered group may trust at the moment. No I/O, injected clock.

A broker gives a lock away when it has not been renewed for `LEASE_SECONDS`, or `GRACE_SECONDS` after it saw the
client's last connection end. A client cannot see what the broker sees: a connection may be gone on one side only. What
it knows is when it asked for a lock that it was given: the broker, which answered after that, saw a connection then.
So for `TRUST_SECONDS` from before it asked, and no longer, nobody else can have the queue. While a queue is in use its
lock is therefore renewed often; one that is idle is renewed now and then, and again when there is something to do.

A call that runs is not ended. What is promised is that none begins once another member may have begun its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from raymq.actors.protocol import GRACE_SECONDS, LEASE_SECONDS, MessageQueue

#: A lock may be used for so long from before it was asked for. The rest of the grace is for a call that has just begun.
TRUST_SECONDS: Final = 0.75 * GRACE_SECONDS
#: How often the lock of a queue is renewed that is in use, and of one that is not.
BUSY_RENEW_SECONDS: Final = 0.5
IDLE_RENEW_SECONDS: Final = 20.0
#: A queue is in use until so long after its last call.
_IN_USE_SECONDS: Final = 10.0


class Link(Protocol):
    """The connection over which a lock was given."""

    @property
    def is_open(self) -> bool:
        """Whether this side has not seen it end. Any thread may ask."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A broker's answer. `asked_at` is from before the request; `term` as in the broker's `groups.locks`."""

    asked_at: float
    term: int
    link: Link


@dataclass(slots=True)
class _Lock:
    grant: Grant
    tried_at: float
    used_at: float


@dataclass(slots=True)
class LockTable:
    """The locks of one member. Any thread may ask `may_begin`; all else is for one thread."""

    clock: Callable[[], float]
    _locks: dict[MessageQueue, _Lock] = field(default_factory=dict)

    def granted(self, queue: MessageQueue, grant: Grant) -> bool:
        """A lock was given or renewed. False: it is of another term, so what was fetched before must not be used."""
        known = self._locks.get(queue)
        if known is None:
            self._locks[queue] = _Lock(grant, grant.asked_at, self.clock())
            return False
        same = known.grant.term == grant.term
        if not same or grant.asked_at > known.grant.asked_at:
            known.grant = grant
        return same

    def may_begin(self, queue: MessageQueue) -> bool:
        """Whether a call with messages of this queue may begin now: nobody else can have its lock."""
        lock = self._locks.get(queue)
        now = self.clock()
        if lock is None or now - lock.grant.asked_at >= TRUST_SECONDS or not lock.grant.link.is_open:
            return False
        lock.used_at = now
        return True

    def want(self, queue: MessageQueue) -> None:
        """A call waits for `may_begin`: renew the lock soon."""
        lock = self._locks.get(queue)
        if lock is not None:
            lock.used_at = self.clock()

    def tried(self, queues: Iterable[MessageQueue]) -> None:
        """Their locks are being asked for."""
        now = self.clock()
        for queue in queues:
            if queue in self._locks:
                self._locks[queue].tried_at = now

    def due(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Which of these locks have to be renewed now."""
        now = self.clock()
        return {queue for queue in queues if queue in self._locks and self._due_at(queue, now) <= now}

    def seconds_until_due(self, queues: Iterable[MessageQueue]) -> float:
        """How long until `due` has something; 0: now."""
        now = self.clock()
        due = (self._due_at(queue, now) for queue in queues if queue in self._locks)
        return max(0.0, min(due, default=now + IDLE_RENEW_SECONDS) - now)

    def ended(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Which of these locks were not renewed for the length of a lease: they are anybody's."""
        now = self.clock()
        return {
            queue
            for queue in queues
            if (lock := self._locks.get(queue)) is None or now - lock.grant.asked_at >= LEASE_SECONDS
        }

    def forget(self, queue: MessageQueue) -> None:
        """The lock was given back, or another member has it."""
        self._locks.pop(queue, None)

    def _due_at(self, queue: MessageQueue, now: float) -> float:
        lock = self._locks[queue]
        in_use = now - lock.used_at < _IN_USE_SECONDS
        return lock.tried_at + (BUSY_RENEW_SECONDS if in_use else IDLE_RENEW_SECONDS)
