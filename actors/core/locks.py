"""Which client consumes a queue in order: RocketMQ's queue locks. No I/O, injected clock.

A lock belongs to a client id of a group. It lasts `LEASE_SECONDS` from the last time it was asked for, and ends at once
when the client gives it back, leaves its group or is forgotten by the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

LEASE_SECONDS = 60.0

#: (topic, queue id)
Queue = tuple[str, int]


@dataclass(slots=True)
class _Lock:
    client_id: str
    expires_at: float


@dataclass(slots=True)
class QueueLocks:
    """The locks of one broker's queues. `clock` is monotonic seconds."""

    clock: Callable[[], float]
    _groups: dict[str, dict[Queue, _Lock]] = field(default_factory=dict)

    def lock(self, group: str, client_id: str, queues: Iterable[Queue]) -> set[Queue]:
        """Take or renew what is free or the client's own; those of `queues` that it holds now."""
        now = self.clock()
        locks = self._groups.setdefault(group, {})
        held = set()
        for queue in queues:
            known = locks.get(queue)
            if known is None or known.client_id == client_id or known.expires_at <= now:
                locks[queue] = _Lock(client_id, now + LEASE_SECONDS)
                held.add(queue)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Give back those of `queues` that the client holds."""
        wanted = set(queues)
        self._drop(group, lambda queue, lock: queue in wanted and lock.client_id == client_id)

    def leave(self, group: str, client_id: str) -> None:
        """The client left the group: all its locks there end."""
        self._drop(group, lambda _, lock: lock.client_id == client_id)

    def forget(self, client_id: str) -> None:
        """The client is gone: all its locks end."""
        for group in list(self._groups):
            self.leave(group, client_id)

    def any_held(self, group: str) -> bool:
        """Whether some client consumes a queue of `group` in order at the moment."""
        now = self.clock()
        return any(lock.expires_at > now for lock in self._groups.get(group, {}).values())

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """The client id that holds a queue's lock, if any."""
        lock = self._groups.get(group, {}).get((topic, queue_id))
        return lock.client_id if lock is not None and lock.expires_at > self.clock() else None

    def _drop(self, group: str, gone: Callable[[Queue, _Lock], bool]) -> None:
        locks = {queue: lock for queue, lock in self._groups.pop(group, {}).items() if not gone(queue, lock)}
        if locks:
            self._groups[group] = locks

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert all(self._groups.values()), "a group without locks stays listed"
