"""Consumer groups as one broker sees them: who is a member, what the group subscribes to. No I/O, injected clock.

A membership belongs to the client id, not to a connection: it falls `GRACE_SECONDS` after the client's last connection
closed, unless the client has come back, and `SILENCE_SECONDS` after its last heartbeat (RocketMQ's channel expiry).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raymq.actors.errors import GroupNotFound, SubscriptionMismatch

GRACE_SECONDS = 2.0
SILENCE_SECONDS = 120.0


@dataclass(slots=True)
class _Member:
    subscriptions: dict[str, str]
    last_seen: float
    connections: set[object] = field(default_factory=set)
    orphaned_at: float | None = None


@dataclass(slots=True)
class GroupTable:
    """Members of all groups. Each change returns the groups whose members have to be told."""

    clock: Callable[[], float]
    _groups: dict[str, dict[str, _Member]] = field(default_factory=dict)

    def heartbeat(self, group: str, client_id: str, subscriptions: Mapping[str, str], connection: object) -> bool:
        """A member says that it lives; `subscriptions` maps topic to expression. True if it is new.

        Raises:
            SubscriptionMismatch: another living member subscribes to something else; nothing changes.
        """
        members = self._groups.setdefault(group, {})
        for other_id, other in members.items():
            if other_id != client_id and other.connections and other.subscriptions != dict(subscriptions):
                raise SubscriptionMismatch(
                    f"group {group}: {client_id} subscribes to {_shown(subscriptions)}, "
                    f"but member {other_id} subscribes to {_shown(other.subscriptions)}",
                    remedy="members of one group must subscribe to the same; use another group name",
                )
        known = members.get(client_id)
        member = members.setdefault(client_id, _Member({}, 0.0))
        member.subscriptions = dict(subscriptions)
        member.last_seen = self.clock()
        member.connections.add(connection)
        member.orphaned_at = None
        return known is None

    def connection_closed(self, connection: object) -> None:
        """A connection is gone: members that have no other begin their grace time."""
        for members in self._groups.values():
            for member in members.values():
                if connection in member.connections:
                    member.connections.discard(connection)
                    if not member.connections:
                        member.orphaned_at = self.clock()

    def unregister(self, group: str, client_id: str) -> bool:
        """A member leaves in good order. True if it was one."""
        return self._groups.get(group, {}).pop(client_id, None) is not None

    def expire(self) -> set[str]:
        """Drop members whose time is over; the groups that lost one."""
        now = self.clock()
        changed = set()
        for group, members in self._groups.items():
            for client_id, member in list(members.items()):
                orphaned = member.orphaned_at is not None and now - member.orphaned_at >= GRACE_SECONDS
                if orphaned or now - member.last_seen >= SILENCE_SECONDS:
                    del members[client_id]
                    changed.add(group)
        return changed

    def members(self, group: str) -> list[str]:
        """Client ids, sorted; GroupNotFound if the group has none here."""
        members = self._groups.get(group)
        if not members:
            raise GroupNotFound(f"no consumer for this group: {group}")
        return sorted(members)

    def connections(self, group: str) -> list[object]:
        """The connections of all members, each once."""
        return list({id(c): c for m in self._groups.get(group, {}).values() for c in m.connections}.values())

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        for members in self._groups.values():
            for member in members.values():
                assert bool(member.connections) == (member.orphaned_at is None)


def _shown(subscriptions: Mapping[str, str]) -> str:
    return ", ".join(f"{topic} [{expression}]" for topic, expression in sorted(subscriptions.items()))
