"""A broker group is emptied, and taken away: what is next, by what is written down and seen.

It takes no new messages first; consumers empty it, and what waits for its time goes on waiting there. Only when nothing
is left that anybody could miss do its processes end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import PERM_READ, PERM_WRITE
from raymq.actors.wire.commands.remains import Leftovers
from raymq.client.cluster_changes import DrainWish
from raymq.cluster.elastic.seen import GroupSeen
from raymq.cluster.elastic.steps import End, ForgetGroup, Permit, Wait, WriteDown
from raymq.cluster.layout import Layout

Step = Wait | WriteDown | Permit | End | ForgetGroup

#: So many looks in a row have to find nothing: what is between two of a broker's tables is in neither for a moment.
_LOOKS = 3
#: So many topics are named.
_MOST_TOPICS = 3


@dataclass(frozen=True, slots=True)
class DrainScene:
    """A group as it is now.

    Attributes:
        actors: of its replicas; replicas come before the master.
        permission: what its master lets clients do; None: there is none that answers.
        remains: what is left there, as the master says.
        is_routed: whether the name servers tell of it.
        others: how many other groups may be written.
    """

    layout: Layout
    actors: tuple[str, ...]
    permission: int | None
    remains: Leftovers | None
    is_routed: bool
    others: int


class Draining:
    """The carrying out of one drain."""

    def __init__(self, group: str, wanted: DrainWish, only_here: Sequence[str] = ()) -> None:
        """`only_here`: topics that no other group has."""
        self._only_here = only_here
        self._group = group
        self._wanted = wanted
        self._empty_looks = 0
        #: Whether all others have been told that it is gone; where that is not known they are told again.
        self.is_forgotten = False

    def did(self, step: object) -> None:
        """A step was done."""
        self.is_forgotten = self.is_forgotten or isinstance(step, ForgetGroup)

    def next(self, scene: DrainScene) -> Step | None:
        """What is to be done; None: nothing more, as far as it was wanted.

        Raises:
            InvalidInput: it cannot be done, or something else is under way in the group.
        """
        layout, group = scene.layout, self._group
        begun = layout.under_way.get(group)
        if begun is None and not scene.actors:
            return None
        if begun is None:
            self._check(scene)
            return WriteDown(layout.with_change(group, {"verb": "drain"}), f"{group} is being drained")
        if begun.get("verb") != "drain":
            raise InvalidInput("broker", f"a group in which nothing else is under way ({begun.get('verb')})", group)
        if not begun.get("going"):
            return self._emptying(scene)
        if scene.actors:
            return End(scene.actors[0])
        if scene.is_routed:
            return Wait(f"{group} is still in the routes")
        if not self.is_forgotten:
            return ForgetGroup(group)
        return WriteDown(layout.with_change(group, None), f"{group} is gone")

    def _emptying(self, scene: DrainScene) -> Step | None:
        group, remains = self._group, scene.remains
        if scene.permission is None or remains is None:
            self._empty_looks = 0
            return Wait(f"{group} has no master that answers")
        if scene.permission & PERM_WRITE:
            return Permit(group, PERM_READ)
        left = in_words(remains, self._wanted.without)
        if left:
            self._empty_looks = 0
            return Wait(f"{group} has {left}")
        self._empty_looks += 1
        if self._empty_looks < _LOOKS:
            return Wait(f"{group} seems to be empty")
        if not self._wanted.remove:
            return None
        self._check_stays(remains)
        return WriteDown(
            scene.layout.without(*scene.layout.replicas_of(group), *scene.actors).with_change(
                group, {"verb": "drain", "going": True}
            ),
            f"{group} is not to come back",
        )

    def _check(self, scene: DrainScene) -> None:
        if not scene.others:
            raise InvalidInput("broker", "one beside which another broker group takes messages", self._group)
        if self._only_here and not self._wanted.lose:
            more = len(self._only_here) - _MOST_TOPICS
            shown = ", ".join(self._only_here[:_MOST_TOPICS]) + (f" and {more} more" if more > 0 else "")
            raise InvalidInput(
                "broker",
                f"one whose topics others have, too, or lose=True (--lose); only {self._group} has {shown}",
                self._group,
                remedy="make them on the others first: Admin.create_topic makes a topic on all brokers",
            )
        if scene.remains is not None:
            self._check_stays(scene.remains)

    def _check_stays(self, remains: Leftovers) -> None:
        stays = stays_in_words(remains)
        if self._wanted.remove and not self._wanted.lose and stays:
            raise InvalidInput(
                "broker",
                f"one that has nothing that stays for ever, or lose=True (--lose); {self._group} has {stays}",
                self._group,
                remedy="redrive dead letters with Admin.dlq_redrive, or let the group stay, drained",
            )


def takers(groups: Mapping[str, GroupSeen], layout: Layout, group: str) -> int:
    """How many groups take what this one does not any more: a master serves there, and they are not drained."""
    drained = {name for name, each in layout.under_way.items() if each.get("verb") == "drain"}
    return sum(name not in drained | {group} and each.master is not None for name, each in groups.items())


def cancelled(group: str, layout: Layout, permission: int | None) -> Step | None:
    """What is next for a drain that is taken back; None: nothing more.

    Raises:
        InvalidInput: it has gone too far.
    """
    begun: Mapping[str, Any] | None = layout.under_way.get(group)
    if begun is not None and begun.get("verb") == "drain" and begun.get("going"):
        raise InvalidInput("broker", "one whose removal has not begun", group)
    if permission is None:
        return Wait(f"{group} has no master that answers")
    if not permission & PERM_WRITE:
        return Permit(group, PERM_READ | PERM_WRITE)
    if begun is not None and begun.get("verb") == "drain":
        return WriteDown(layout.with_change(group, None), f"{group} is not drained any more")
    return None


def in_words(remains: Leftovers, without: frozenset[str] = frozenset()) -> str:
    """What is left that goes by itself, or when it is consumed; empty: nothing."""
    told = []
    awaited = {key: count for key, count in remains.unconsumed.items() if key[0] not in without}
    for (group, topic), count in list(awaited.items())[:3]:
        told.append(f"{count} messages of {topic} for group {group}")
    ignored = sum(remains.unconsumed.values()) - sum(awaited.values())
    more = remains.unconsumed_messages - ignored - sum(count for _, count in list(awaited.items())[:3])
    if more > 0:
        told.append(f"{more} messages for others")
    lent = remains.lent - sum(remains.lent_to.get(group, 0) for group in without)
    counts = (
        (remains.delayed, "delayed messages"),
        (remains.timers, "timers"),
        (lent, "messages that are out"),
        (remains.staged, "staged writes"),
        (remains.writes, "writes that it decides on"),
    )
    told += [f"{count} {what}" for count, what in counts if count]
    return ", ".join(told)


def stays_in_words(remains: Leftovers) -> str:
    """What is left that does not go by itself; empty: nothing."""
    told = [f"{count} dead letters of {group}" for group, count in remains.dead_letters.items()]
    if remains.homes:
        told.append(f"the progress of {remains.homes} streams or series of writes")
    return ", ".join(told)
