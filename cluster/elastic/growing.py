"""A broker group more: what is next, by what is written down and seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.naming import is_broker_name
from raymq.cluster.elastic.patience import Patience
from raymq.cluster.elastic.seen import GroupSeen, ReplicaSeen
from raymq.cluster.elastic.steps import FoundGroup, Make, Spread, Wait, WriteDown
from raymq.cluster.layout import Layout

Step = Wait | WriteDown | FoundGroup | Make | Spread


@dataclass(frozen=True, slots=True)
class NewGroup:
    """What is wanted.

    Attributes:
        name: of the group. machines: of each of its replicas, by the name of its actor.
        topics: those that are to be spread onto it; None: all but the ordered ones, whose keys would change queues.
    """

    name: str
    machines: Mapping[str, str]
    topics: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written down."""
        topics = None if self.topics is None else list(self.topics)
        return {"verb": "grow", "machines": dict(self.machines), "topics": topics}

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> NewGroup:
        """What `to_json` made."""
        topics = raw["topics"]
        return cls(name, dict(raw["machines"]), None if topics is None else tuple(topics))


@dataclass(frozen=True, slots=True)
class GrowScene:
    """The cluster as it is now.

    Attributes:
        actors: of all brokers. group: the new one as it is seen; None: not at all.
        is_replicated: whether there is a register, in which it has to be.
        lacks: the topics that are to be on it, and are not; None: it is not known yet.
    """

    layout: Layout
    actors: Collection[str]
    group: GroupSeen | None
    is_replicated: bool
    lacks: tuple[str, ...] | None


class Growing:
    """The carrying out of one addition."""

    def __init__(self, wanted: NewGroup, clock: Callable[[], float]) -> None:
        """`clock`: seconds that do not go back."""
        self._wanted = wanted
        self._patience = Patience(clock)
        #: What was done in this run; where that is not known it is done again, and changes nothing.
        self.is_founded = False
        self.is_spread = False

    def did(self, step: object) -> None:
        """A step was done."""
        self.is_founded = self.is_founded or isinstance(step, FoundGroup)
        self.is_spread = self.is_spread or isinstance(step, Spread)

    def next(self, scene: GrowScene) -> Step | None:
        """What is to be done; None: nothing more.

        Raises:
            BrokerUnavailable: the group does not come up.
        """
        wanted, layout = self._wanted, scene.layout
        if layout.under_way.get(wanted.name) != wanted.to_json():
            if self.is_spread:
                return None
            after = layout.with_added(wanted.machines).with_change(wanted.name, wanted.to_json())
            machines = ", ".join(f"{name} on {machine}" for name, machine in wanted.machines.items())
            return WriteDown(after, f"{wanted.name} comes: {machines}")
        missing = {name: machine for name, machine in wanted.machines.items() if name not in scene.actors}
        if missing and scene.is_replicated and not self.is_founded:
            return FoundGroup(wanted.name)
        for name, machine in missing.items():
            return Make(name, machine)
        trouble = f"{wanted.name} is not in the routes" if scene.group is None else scene.group.trouble
        if trouble or scene.lacks is None:
            trouble = trouble or "its topics are not known yet"
            if self._patience.is_over(trouble):
                raise BrokerUnavailable(
                    wanted.name, f"{trouble}, for too long", remedy="ask for the same again when that is right"
                )
            return Wait(trouble)
        if scene.lacks or not self.is_spread:
            return Spread(wanted.name, scene.lacks)
        return WriteDown(layout.with_change(wanted.name, None), f"{wanted.name} is there")


def planned(layout: Layout, brokers: int, name: str | None, groups: Collection[str]) -> str:
    """The name of the group that is to come: the one that is under way, the one that is named, or the next one.

    Raises:
        InvalidInput: it is there already, was there before, or can be none.
    """
    under_way = sorted(group for group, each in layout.under_way.items() if each.get("verb") == "grow")
    if under_way and name in (None, *under_way):
        return name or under_way[0]
    if name is None:
        return layout.next_group(brokers)
    if not is_broker_name(name) or "." in name:
        raise InvalidInput("name", 'as "broker-c"', name)
    known = {each.partition(".")[0] for each in (*layout.machines, *layout.removed)}
    if name in groups or name in known:
        raise InvalidInput("name", f"of a broker that never was, as {layout.next_group(brokers)}", name)
    return name


def rehearsed(wanted: NewGroup, layout: Layout, lacks: tuple[str, ...] | None, *, is_replicated: bool) -> list[str]:
    """The steps in words, if each of them succeeds."""
    plan, told = Growing(wanted, lambda: 0.0), []
    scene = GrowScene(layout, set(), None, is_replicated=is_replicated, lacks=lacks or ())
    while (step := plan.next(scene)) is not None:
        told.append(str(step))
        plan.did(step)
        if isinstance(step, WriteDown):
            scene = replace(scene, layout=step.layout)
        elif isinstance(step, Make):
            whole = {0: ReplicaSeen(wanted.name, 0, 1, is_master=True)}
            scene = replace(scene, actors={*scene.actors, step.name}, group=GroupSeen(wanted.name, whole))
        elif isinstance(step, Spread):
            scene = replace(scene, lacks=())
    return told
