"""Plan the steps that drain and remove a broker group, from the observed state.

First the group stops accepting new messages. Consumers then consume its messages, and delayed messages stay there until
they are due. Its processes end only when nothing is left that a client may still need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import PERM_READ, PERM_WRITE
from raymq.actors.wire.commands.drain_commands import DrainBacklog
from raymq.client.cluster_changes import DrainOptions
from raymq.cluster.cluster_layout import ClusterLayout
from raymq.cluster.elastic.change_steps import DeregisterGroup, SaveLayout, SetPermission, StopReplica, WaitStep
from raymq.cluster.elastic.observed_groups import ObservedGroup

Step = WaitStep | SaveLayout | SetPermission | StopReplica | DeregisterGroup

#: The number of empty observations in a row that prove an empty group, because an item that moves between two of a
#: broker's tables is in neither for a moment.
_EMPTY_CHECKS = 3
#: The number of topics that an error message names.
_MAX_TOPICS = 3


@dataclass(frozen=True, slots=True)
class DrainState:
    """The observed state of a group.

    Attributes:
        actors: of its replicas; the master comes last.
        permission: what its master allows clients; None: no master answers.
        remains: the backlog that the master reports.
        is_routed: whether the name servers have a route to the group.
        others: the number of other groups that accept messages.
    """

    layout: ClusterLayout
    actors: tuple[str, ...]
    permission: int | None
    remains: DrainBacklog | None
    is_routed: bool
    others: int


class DrainPlanner:
    """The planner of one drain."""

    def __init__(self, group: str, options: DrainOptions, unique_topics: Sequence[str] = ()) -> None:
        """Create a planner; `unique_topics` are topics that no other group has."""
        self._only_here = unique_topics
        self._group = group
        self._wanted = options
        self._empty_checks = 0
        #: Whether all other groups were told to forget this group; if unknown, they are told again.
        self.is_forgotten = False

    def record_done(self, step: object) -> None:
        """Record that a step was executed."""
        self.is_forgotten = self.is_forgotten or isinstance(step, DeregisterGroup)

    def next(self, scene: DrainState) -> Step | None:
        """Return the next step, None if the requested drain is finished.

        Raises:
            InvalidInput: the drain is not possible, or another change of the group is in progress.
        """
        layout, group = scene.layout, self._group
        begun = layout.pending_changes.get(group)
        if begun is None and not scene.actors:
            return None
        if begun is None:
            self._check(scene)
            return SaveLayout(layout.with_change(group, {"verb": "drain"}), f"{group} is being drained")
        if begun.get("verb") != "drain":
            raise InvalidInput("broker", f"a group in which nothing else is under way ({begun.get('verb')})", group)
        if not begun.get("going"):
            return self._next_drain_step(scene)
        if scene.actors:
            return StopReplica(scene.actors[0])
        if scene.is_routed:
            return WaitStep(f"{group} is still in the routes")
        if not self.is_forgotten:
            return DeregisterGroup(group)
        return SaveLayout(layout.with_change(group, None), f"{group} is removed")

    def _next_drain_step(self, scene: DrainState) -> Step | None:
        group, remains = self._group, scene.remains
        if scene.permission is None or remains is None:
            self._empty_checks = 0
            return WaitStep(f"{group} has no master that answers")
        if scene.permission & PERM_WRITE:
            return SetPermission(group, PERM_READ)
        pending = describe_pending(remains, self._wanted.without)
        if pending:
            self._empty_checks = 0
            return WaitStep(f"{group} has {pending}")
        self._empty_checks += 1
        if self._empty_checks < _EMPTY_CHECKS:
            return WaitStep(f"{group} seems to be empty")
        if not self._wanted.remove:
            return None
        self._check_permanent(remains)
        return SaveLayout(
            scene.layout.without(*scene.layout.replicas_of(group), *scene.actors).with_change(
                group, {"verb": "drain", "going": True}
            ),
            f"{group} is removed for good",
        )

    def _check(self, scene: DrainState) -> None:
        if not scene.others:
            raise InvalidInput("broker", "a group beside which another broker group takes messages", self._group)
        if self._only_here and not self._wanted.lose:
            more = len(self._only_here) - _MAX_TOPICS
            shown = ", ".join(self._only_here[:_MAX_TOPICS]) + (f" and {more} more" if more > 0 else "")
            raise InvalidInput(
                "broker",
                f"a group whose topics others have, too, or lose=True (--lose); only {self._group} has {shown}",
                self._group,
                remedy="create them on the others first: Admin.create_topic creates a topic on all brokers",
            )
        if scene.remains is not None:
            self._check_permanent(scene.remains)

    def _check_permanent(self, remains: DrainBacklog) -> None:
        stays = describe_permanent(remains)
        if self._wanted.remove and not self._wanted.lose and stays:
            raise InvalidInput(
                "broker",
                f"a group without dead letters and streams' progress, or lose=True (--lose); {self._group} has {stays}",
                self._group,
                remedy="redrive dead letters with Admin.dlq_redrive, or let the group stay, drained",
            )


def count_writable_groups(groups: Mapping[str, ObservedGroup], layout: ClusterLayout, group: str) -> int:
    """Return the number of other groups that have a master and are not drained."""
    drained = {name for name, each in layout.pending_changes.items() if each.get("verb") == "drain"}
    return sum(name not in drained | {group} and each.master is not None for name, each in groups.items())


def next_cancel_step(group: str, layout: ClusterLayout, permission: int | None) -> Step | None:
    """Return the next step of a cancelled drain, None if nothing is left to do.

    Raises:
        InvalidInput: the removal of the group has begun already.
    """
    begun: Mapping[str, Any] | None = layout.pending_changes.get(group)
    if begun is not None and begun.get("verb") == "drain" and begun.get("going"):
        raise InvalidInput("broker", "a group whose removal has not begun", group)
    if permission is None:
        return WaitStep(f"{group} has no master that answers")
    if not permission & PERM_WRITE:
        return SetPermission(group, PERM_READ | PERM_WRITE)
    if begun is not None and begun.get("verb") == "drain":
        return SaveLayout(layout.with_change(group, None), f"{group} is not drained any more")
    return None


def describe_pending(remains: DrainBacklog, without: frozenset[str] = frozenset()) -> str:
    """Describe the pending backlog, which consumption or time clears; empty if there is none.

    It consists of unconsumed, delayed and lent messages, timers, staged writes, and undecided writes.
    """
    parts = []
    awaited = {key: count for key, count in remains.unconsumed.items() if key[0] not in without}
    for (group, topic), count in list(awaited.items())[:3]:
        parts.append(f"{count} messages of {topic} for group {group}")
    ignored = sum(remains.unconsumed.values()) - sum(awaited.values())
    more = remains.unconsumed_messages - ignored - sum(count for _, count in list(awaited.items())[:3])
    if more > 0:
        parts.append(f"{more} messages for others")
    lent = remains.lent - sum(remains.lent_to.get(group, 0) for group in without)
    counts = (
        (remains.delayed, "delayed messages"),
        (remains.timers, "timers"),
        (lent, "messages in flight"),
        (remains.staged, "staged writes"),
        (remains.writes, "writes that it coordinates"),
    )
    parts += [f"{count} {what}" for count, what in counts if count]
    return ", ".join(parts)


def describe_permanent(remains: DrainBacklog) -> str:
    """Describe the data that stays on the group; empty if there is none.

    It consists of dead letters, and of the progress of streams and series of writes.
    """
    parts = [f"{count} dead letters of {group}" for group, count in remains.dead_letters.items()]
    if remains.homes:
        parts.append(f"the progress of {remains.homes} streams or series of writes")
    return ", ".join(parts)
