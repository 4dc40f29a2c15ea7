"""Decide which queue locks a member of an ordered group may use now.

No I/O, injected clock. A broker releases a lock if it was not renewed for `LEASE_SECONDS`, or `SESSION_GRACE_SECONDS`
after it saw the client's last connection end. A client cannot observe the broker's view, since a connection may be
closed on one side only. But it has the time at which it requested a lock that it was granted: the broker answered
later, so at that time it still had a connection. So for `LOCK_VALID_SECONDS` after the time of the request, and no
longer, no other client can have the lock. While a queue is in use its lock is therefore renewed often; the lock of an
idle queue is renewed now and then, and again when there are messages.

A running listener call is not interrupted. The guarantee is that no call begins once another member may have begun its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from raymq.actors.protocol import LEASE_SECONDS, SESSION_GRACE_SECONDS, MessageQueue

#: How long a lock may be used after the time of its request. The rest of the grace is for a call that has just begun.
LOCK_VALID_SECONDS: Final = 0.75 * SESSION_GRACE_SECONDS
#: How often the lock of a queue in use is renewed, and of an idle one.
BUSY_RENEW_SECONDS: Final = 0.5
IDLE_RENEW_SECONDS: Final = 20.0
#: A queue is in use for this time after its last call.
_IN_USE_SECONDS: Final = 10.0


class LockConnection(Protocol):
    """The connection over which a lock was granted."""

    @property
    def is_open(self) -> bool:
        """Return True if this side has not seen it end. Any thread."""


@dataclass(frozen=True, slots=True)
class LockGrant:
    """A broker's grant of a lock.

    `asked_at` is a time before the request; `term` is the number that the broker gives a lock each time it passes to a
    client.
    """

    asked_at: float
    term: int
    link: LockConnection


@dataclass(slots=True)
class _Lock:
    grant: LockGrant
    tried_at: float
    used_at: float


@dataclass(slots=True)
class LockTable:
    """The locks of one member.

    Any thread may call `may_begin`; all other methods are for one thread.
    """

    clock: Callable[[], float]
    _locks: dict[MessageQueue, _Lock] = field(default_factory=dict)

    def granted(self, queue: MessageQueue, grant: LockGrant) -> bool:
        """Record a granted or renewed lock; return True if its term is unchanged.

        If False, the lock is new or of another term: messages that were fetched before must not be used.
        """
        known = self._locks.get(queue)
        if known is None:
            self._locks[queue] = _Lock(grant, grant.asked_at, self.clock())
            return False
        same = known.grant.term == grant.term
        if not same or grant.asked_at > known.grant.asked_at:
            known.grant = grant
        return same

    def may_begin(self, queue: MessageQueue) -> bool:
        """Return True if a call with messages of this queue may begin now.

        No other member can have the queue's lock then.
        """
        lock = self._locks.get(queue)
        now = self.clock()
        if lock is None or now - lock.grant.asked_at >= LOCK_VALID_SECONDS or not lock.grant.link.is_open:
            return False
        lock.used_at = now
        return True

    def want(self, queue: MessageQueue) -> None:
        """Mark the queue as in use, so that its lock is renewed soon.

        A call waits for `may_begin`.
        """
        lock = self._locks.get(queue)
        if lock is not None:
            lock.used_at = self.clock()

    def tried(self, queues: Iterable[MessageQueue]) -> None:
        """Record that the locks of these queues are being requested now."""
        now = self.clock()
        for queue in queues:
            if queue in self._locks:
                self._locks[queue].tried_at = now

    def due(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return the queues whose locks have to be renewed now."""
        now = self.clock()
        return {queue for queue in queues if queue in self._locks and self._due_at(queue, now) <= now}

    def seconds_until_due(self, queues: Iterable[MessageQueue]) -> float:
        """Return the seconds until a lock has to be renewed; 0 means now."""
        now = self.clock()
        due = (self._due_at(queue, now) for queue in queues if queue in self._locks)
        return max(0.0, min(due, default=now + IDLE_RENEW_SECONDS) - now)

    def ended(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return the queues whose locks are missing or expired.

        A lock expires if it was not renewed for the length of a lease; any member may get it then.
        """
        now = self.clock()
        return {
            queue
            for queue in queues
            if (lock := self._locks.get(queue)) is None or now - lock.grant.asked_at >= LEASE_SECONDS
        }

    def forget(self, queue: MessageQueue) -> None:
        """Remove a lock that was released, or that another member has."""
        self._locks.pop(queue, None)

    def _due_at(self, queue: MessageQueue, now: float) -> float:
        lock = self._locks[queue]
        in_use = now - lock.used_at < _IN_USE_SECONDS
        return lock.tried_at + (BUSY_RENEW_SECONDS if in_use else IDLE_RENEW_SECONDS)
