"""Plan the steps that add a broker group, from the observed state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.naming import is_broker_name
from raymq.cluster.cluster_layout import ClusterLayout
from raymq.cluster.elastic.change_steps import CopyMetadata, RegisterGroup, SaveLayout, StartReplica, WaitStep
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica
from raymq.cluster.elastic.stall_timeout import StallTimeout

Step = WaitStep | SaveLayout | RegisterGroup | StartReplica | CopyMetadata


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """The requested group.

    Attributes:
        name: of the group.
        machines: the machine of each of its replicas, by the name of the replica's actor.
        topics: the topics to create on it; None: all except the ordered ones, because their keys would change queues.
    """

    name: str
    machines: Mapping[str, str]
    topics: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the request as it is recorded."""
        topics = None if self.topics is None else list(self.topics)
        return {"verb": "grow", "machines": dict(self.machines), "topics": topics}

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> ScaleOut:
        """Return the request that `to_json` encoded."""
        topics = raw["topics"]
        return cls(name, dict(raw["machines"]), None if topics is None else tuple(topics))


@dataclass(frozen=True, slots=True)
class ScaleOutState:
    """The observed state of the cluster.

    Attributes:
        actors: of all brokers.
        group: the observed new group; None: it has no actors yet.
        is_replicated: whether there is a register, to which the group must be added.
        missing_topics: the topics that the group must have and lacks; None: unknown yet.
    """

    layout: ClusterLayout
    actors: Collection[str]
    group: ObservedGroup | None
    is_replicated: bool
    missing_topics: tuple[str, ...] | None


class ScaleOutPlanner:
    """The planner of one addition."""

    def __init__(self, change: ScaleOut, clock: Callable[[], float]) -> None:
        """Create a planner; `clock` is a monotonic clock in seconds."""
        self._wanted = change
        self._patience = StallTimeout(clock)
        #: Steps that were executed in this run; otherwise they are repeated, which changes nothing.
        self.is_registered = False
        self.is_copied = False

    def record_done(self, step: object) -> None:
        """Record that a step was executed."""
        self.is_registered = self.is_registered or isinstance(step, RegisterGroup)
        self.is_copied = self.is_copied or isinstance(step, CopyMetadata)

    def next(self, scene: ScaleOutState) -> Step | None:
        """Return the next step that adds the broker group, None if it is added.

        Raises:
            BrokerUnavailable: the group has been unavailable for the same reason for too long.
        """
        change, layout = self._wanted, scene.layout
        if layout.pending_changes.get(change.name) != change.to_json():
            if self.is_copied:
                return None
            after = layout.with_added(change.machines).with_change(change.name, change.to_json())
            machines = ", ".join(f"{name} on {machine}" for name, machine in change.machines.items())
            return SaveLayout(after, f"{change.name} is added: {machines}")
        missing = {name: machine for name, machine in change.machines.items() if name not in scene.actors}
        if missing and scene.is_replicated and not self.is_registered:
            return RegisterGroup(change.name)
        for name, machine in missing.items():
            return StartReplica(name, machine)
        trouble = f"{change.name} is not in the routes" if scene.group is None else scene.group.trouble
        if trouble or scene.missing_topics is None:
            trouble = trouble or "its topics are not known yet"
            if self._patience.has_expired(trouble):
                raise BrokerUnavailable(
                    change.name, f"{trouble}, for too long", remedy="repeat the call when this is solved"
                )
            return WaitStep(trouble)
        if scene.missing_topics or not self.is_copied:
            return CopyMetadata(change.name, scene.missing_topics)
        return SaveLayout(layout.with_change(change.name, None), f"{change.name} is complete")


def planned(layout: ClusterLayout, brokers: int, name: str | None, groups: Collection[str]) -> str:
    """Return the name of the new group.

    It is the group in progress, the named group, or else the next name.

    Raises:
        InvalidInput: the group exists or existed before, or the name is invalid.
    """
    pending_changes = sorted(group for group, each in layout.pending_changes.items() if each.get("verb") == "grow")
    if pending_changes and name in (None, *pending_changes):
        return name or pending_changes[0]
    if name is None:
        return layout.next_group(brokers)
    if not is_broker_name(name) or "." in name:
        raise InvalidInput("name", 'a name such as "broker-c"', name)
    known = {each.partition(".")[0] for each in (*layout.machines, *layout.removed)}
    if name in groups or name in known:
        raise InvalidInput("name", f"a name that no broker ever had, such as {layout.next_group(brokers)}", name)
    return name


def dry_run_steps(
    change: ScaleOut, layout: ClusterLayout, missing_topics: tuple[str, ...] | None, *, is_replicated: bool
) -> list[str]:
    """Return the descriptions of the steps, assuming that each succeeds."""
    plan, steps = ScaleOutPlanner(change, lambda: 0.0), []
    scene = ScaleOutState(layout, set(), None, is_replicated=is_replicated, missing_topics=missing_topics or ())
    while (step := plan.next(scene)) is not None:
        steps.append(str(step))
        plan.record_done(step)
        if isinstance(step, SaveLayout):
            scene = replace(scene, layout=step.layout)
        elif isinstance(step, StartReplica):
            whole = {0: ObservedReplica(change.name, 0, 1, is_master=True)}
            scene = replace(scene, actors={*scene.actors, step.name}, group=ObservedGroup(change.name, whole))
        elif isinstance(step, CopyMetadata):
            scene = replace(scene, missing_topics=())
    return steps
