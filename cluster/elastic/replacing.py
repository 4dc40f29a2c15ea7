"""A replica more, one less, or one in the place of another: what is next, by what is written down and what is seen.

What is to be is written down first: whatever ends this process, the next start, and who asks for the same again, go on
with it. A replica that is to go stays until the new one has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.keeper.group_state import MOST_REPLICAS
from raymq.actors.naming import is_replica_of, replica_name
from raymq.cluster.elastic.patience import Patience
from raymq.cluster.elastic.seen import GroupSeen, ReplicaSeen
from raymq.cluster.elastic.steps import End, Forget, HandOver, Make, Wait, WriteDown
from raymq.cluster.layout import Layout, group_of, number_of

Step = Wait | WriteDown | Make | HandOver | End | Forget

#: One that is wanted as master does not come to be it in so many tries.
_MOST_HANDOVERS = 3


@dataclass(frozen=True, slots=True)
class Scene:
    """A group as it is now.

    Attributes:
        actors: the names of all brokers' actors.
        registered: the names of the group's replicas that the register knows; whether each is in sync.
    """

    layout: Layout
    actors: frozenset[str]
    group: GroupSeen
    registered: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is wanted. `new` is to be on `machine`; without it nobody is added, without `old` nobody goes."""

    verb: str
    new: str | None = None
    machine: str = ""
    old: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written down."""
        return {"verb": self.verb, "new": self.new, "machine": self.machine, "old": self.old}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Replacement:
        """What `to_json` made."""
        return cls(str(raw["verb"]), raw.get("new"), str(raw.get("machine", "")), raw.get("old"))

    def in_words(self) -> str:
        """For people."""
        if self.new is None:
            return f"{self.old} goes"
        return f"{self.new} comes to {self.machine}" + (f" in the place of {self.old}" if self.old else "")


class Replacing:
    """The carrying out of one replacement."""

    def __init__(self, group: str, wanted: Replacement, clock: Callable[[], float]) -> None:
        """`clock`: seconds that do not go back."""
        self._group = group
        self._wanted = wanted
        self._patience = Patience(clock)
        self._handovers = 0

    def next(self, scene: Scene) -> Step | None:
        """What is to be done; None: nothing more.

        Raises:
            BrokerUnavailable: what is waited for does not come.
        """
        wanted, layout = self._wanted, scene.layout
        if self._is_over(scene):
            if self._group not in layout.under_way:
                return None
            return WriteDown(layout.with_change(self._group, None), f"{wanted.in_words()}: done")
        if layout.under_way.get(self._group) != wanted.to_json():
            after = layout if wanted.new is None else layout.with_added({wanted.new: wanted.machine})
            return WriteDown(after.with_change(self._group, wanted.to_json()), wanted.in_words())
        if wanted.new is not None and (step := self._coming(wanted.new, scene)) is not None:
            return step
        return None if wanted.old is None else self._going(wanted.old, scene)

    def _is_over(self, scene: Scene) -> bool:
        new, old = self._wanted.new, self._wanted.old
        if new is not None and self._lacks(new, scene):
            return False
        return old is None or (old in scene.layout.removed and old not in scene.actors and old not in scene.registered)

    def _coming(self, new: str, scene: Scene) -> Step | None:
        if new not in scene.actors:
            return Make(new, self._wanted.machine)
        lacks = self._lacks(new, scene)
        return self._wait(lacks) if lacks else None

    @staticmethod
    def _lacks(name: str, scene: Scene) -> str:
        """What a replica lacks to be one of those in sync; empty: nothing."""
        seen, group = scene.group.replicas.get(number_of(name)), scene.group
        if name not in scene.actors or seen is None or seen.pid is None:
            return f"{name} does not answer yet"
        if group.master is None:
            return f"{group.name} has no master"
        if seen.number not in (group.in_sync or ()) or (not seen.is_master and seen.lag_bytes is None):
            behind = "" if not seen.lag_bytes else f": {seen.lag_bytes >> 20} MiB behind"
            return f"{name} is not in sync yet{behind}"
        return ""

    def _going(self, old: str, scene: Scene) -> Step:
        seen = scene.group.replicas.get(number_of(old))
        others = (scene.group.in_sync or frozenset()) - {number_of(old)}
        if old in scene.actors:
            if not others:
                return self._wait(f"nobody but {old} is in sync")
            if seen is not None and seen.is_master:
                self._handovers += 1
                if self._handovers > _MOST_HANDOVERS:
                    raise self._given_up(f"{old} has not handed over in {_MOST_HANDOVERS} tries")
                new = self._wanted.new
                return HandOver(self._group, number_of(new) if new is not None else min(others))
            if old not in scene.layout.removed:
                return WriteDown(scene.layout.without(old), f"{old} is not to come back")
            return End(old)
        if old not in scene.layout.removed:
            return WriteDown(scene.layout.without(old), f"{old} is not to come back")
        if scene.registered.get(old):
            return self._wait(f"{old} still counts as in sync")
        return Forget(old)

    def _wait(self, why: str) -> Wait:
        if self._patience.is_over(why):
            raise self._given_up(f"{why}, for too long")
        return Wait(why)

    def _given_up(self, why: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            self._group,
            f"{why}; it stays under way: {self._wanted.in_words()}",
            remedy="ask for the same again when that is right"
            + (f", or take {self._wanted.new} away with Admin.remove_broker" if self._wanted.new else ""),
        )


def under_way(layout: Layout, group: str) -> Replacement | None:
    """The replacement that was begun in a group."""
    raw = layout.under_way.get(group)
    return None if raw is None or raw.get("verb") not in ("add", "move", "remove") else Replacement.from_json(raw)


def planned(group: str, wanted: Replacement, min_in_sync: int, scene: Scene) -> Replacement:
    """What is to be carried out where that is wanted: the one that is under way, if it is the same.

    Raises:
        InvalidInput: another change of the group is under way; or it cannot be done.
    """
    layout = scene.layout
    begun = layout.under_way.get(group)
    if begun is not None:
        known = under_way(layout, group)
        if known is None:
            raise InvalidInput("broker", f"a group in which nothing else is under way ({begun.get('verb')})", group)
        same = wanted.verb == known.verb and wanted.old == known.old and wanted.machine in ("", known.machine)
        if same:
            return known
        if wanted.verb != "remove" or wanted.old != known.new or known.old in layout.removed:
            raise InvalidInput(
                "broker",
                f"a group in which nothing is under way: {known.in_words()} ({known.verb})",
                group,
                remedy=f"ask for that again, which finishes it, or take {known.new} away with Admin.remove_broker",
            )
    if wanted.old is not None:
        _check_old(wanted, scene, min_in_sync)
        if wanted.new is not None and layout.machines.get(wanted.old) == wanted.machine:
            raise InvalidInput("host", f"another machine than the one that {wanted.old} is on", wanted.machine)
    return wanted


def free_name(group: str, scene: Scene) -> str:
    """The actor's name of one replica more: of a number that is free, if possible one that never was used.

    Raises:
        InvalidInput: the group has as many as it may have.
    """
    names = [replica_name(group, number) for number in range(MOST_REPLICAS)]
    taken = {*scene.actors, *scene.registered, *scene.layout.machines}
    free = [name for name in names if name not in taken]
    if not free:
        raise InvalidInput("replicas", f"at most {MOST_REPLICAS} of a group", len(names) + 1)
    return min(free, key=lambda name: (name in scene.layout.removed, number_of(name)))


def _check_old(wanted: Replacement, scene: Scene, min_in_sync: int) -> None:
    old = wanted.old
    assert old is not None
    known = {*scene.actors, *scene.registered}
    written = {*known, *scene.layout.machines, *scene.layout.removed}  # one that never came, too
    if old not in written:
        replicas = sorted(name for name in known if is_replica_of(name, group_of(old)))
        raise InvalidInput("replica", f"one of {', '.join(replicas)}", old)
    left = (scene.group.in_sync or frozenset()) - {number_of(old)}
    if wanted.new is None and old in known and len(left) < max(1, min_in_sync):
        raise InvalidInput(
            "replica",
            f"one without which at least {max(1, min_in_sync)} replicas are in sync (min_in_sync)",
            old,
            remedy="add another one first",
        )


def rehearsed(group: str, wanted: Replacement, scene: Scene) -> list[str]:
    """The steps in words, if each of them succeeds."""
    plan, told = Replacing(group, wanted, lambda: 0.0), []
    while (step := plan.next(scene)) is not None:
        told.append(str(step))
        scene = _after(step, scene)
    return told


def _after(step: Step, scene: Scene) -> Scene:
    """The scene when a step has done what it is for."""
    group, replicas = scene.group, dict(scene.group.replicas)
    if isinstance(step, WriteDown):
        return replace(scene, layout=step.layout)
    if isinstance(step, Make):
        replicas[number_of(step.name)] = ReplicaSeen(group.name, number_of(step.name), 1, lag_bytes=0)
        in_sync = (group.in_sync or frozenset()) | {number_of(step.name)}
        registered = {**scene.registered, step.name: True}
        seen = replace(group, replicas=replicas, in_sync=in_sync)
        return replace(scene, group=seen, actors=scene.actors | {step.name}, registered=registered)
    if isinstance(step, HandOver):
        replicas = {n: replace(each, is_master=n == step.replica, lag_bytes=0) for n, each in replicas.items()}
        return replace(scene, group=replace(group, replicas=replicas))
    if isinstance(step, End):
        replicas.pop(number_of(step.name), None)
        in_sync = (group.in_sync or frozenset()) - {number_of(step.name)}
        registered = {name: each and name != step.name for name, each in scene.registered.items()}
        seen = replace(group, replicas=replicas, in_sync=in_sync)
        return replace(scene, group=seen, actors=scene.actors - {step.name}, registered=registered)
    if isinstance(step, Forget):
        return replace(scene, registered={name: v for name, v in scene.registered.items() if name != step.name})
    whole = {n: replace(each, pid=each.pid or 1, lag_bytes=each.lag_bytes or 0) for n, each in replicas.items()}
    if group.master is None and whole:
        whole[min(whole)] = replace(whole[min(whole)], is_master=True)
    return replace(scene, group=replace(group, replicas=whole, in_sync=frozenset(whole)))
