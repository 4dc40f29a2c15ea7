"""Plan the steps that add, remove or move a replica, from the observed state.

The intended change is recorded first. If this process ends, the next start, or a repetition of the same command,
continues it. A replica that is to be removed stays until the new one is in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.keeper.group_state import MAX_REPLICAS
from raymq.actors.naming import is_replica_of, replica_name
from raymq.cluster.cluster_layout import ClusterLayout, group_name, replica_number
from raymq.cluster.elastic.change_steps import (
    DeregisterReplica,
    SaveLayout,
    StartReplica,
    StopReplica,
    TransferMaster,
    WaitStep,
)
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica
from raymq.cluster.elastic.stall_timeout import StallTimeout

Step = WaitStep | SaveLayout | StartReplica | TransferMaster | StopReplica | DeregisterReplica

#: The most attempts to make another replica the master.
_MAX_HANDOVERS = 3


@dataclass(frozen=True, slots=True)
class ReplicaChangeState:
    """The observed state of a group.

    Attributes:
        actors: the names of the actors of the group's replicas.
        registered: the names of the group's registered replicas, with whether each is in sync.
    """

    layout: ClusterLayout
    actors: frozenset[str]
    group: ObservedGroup
    registered: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """The requested change: `new` is added on `machine`, and `old` is removed.

    Without `new` no replica is added; without `old` none is removed.
    """

    verb: str
    new: str | None = None
    machine: str = ""
    old: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the change as it is recorded."""
        return asdict(self)

    def describe(self) -> str:
        """Describe the change for people."""
        if self.new is None:
            return f"{self.old} is removed"
        return f"{self.new} is added on {self.machine}" + (f" in place of {self.old}" if self.old else "")


class ReplicaChangePlanner:
    """The planner of one change."""

    def __init__(self, group: str, change: ReplicaChange, clock: Callable[[], float]) -> None:
        """Create a planner; `clock` is a monotonic clock in seconds."""
        self._group = group
        self._wanted = change
        self._patience = StallTimeout(clock)
        self._handovers = 0

    def next(self, scene: ReplicaChangeState) -> Step | None:
        """Return the next step, None if the change is finished.

        Raises:
            BrokerUnavailable: a condition that the change waits for is not met in time.
        """
        change, layout = self._wanted, scene.layout
        if self._is_complete(scene):
            if self._group not in layout.pending_changes:
                return None
            return SaveLayout(layout.with_change(self._group, None), f"{change.describe()}: done")
        if layout.pending_changes.get(self._group) != change.to_json():
            after = layout if change.new is None else layout.with_added({change.new: change.machine})
            return SaveLayout(after.with_change(self._group, change.to_json()), change.describe())
        if change.new is not None and (step := self._next_add_step(change.new, scene)) is not None:
            return step
        return None if change.old is None else self._next_remove_step(change.old, scene)

    def _is_complete(self, scene: ReplicaChangeState) -> bool:
        new, old = self._wanted.new, self._wanted.old
        if new is not None and self._lacks(new, scene):
            return False
        return old is None or (old in scene.layout.removed and old not in scene.actors and old not in scene.registered)

    def _next_add_step(self, new: str, scene: ReplicaChangeState) -> Step | None:
        if new not in scene.actors:
            return StartReplica(new, self._wanted.machine)
        lacks = self._lacks(new, scene)
        return self._wait(lacks) if lacks else None

    @staticmethod
    def _lacks(name: str, scene: ReplicaChangeState) -> str:
        """Describe what a replica lacks to be in sync; empty if nothing."""
        seen, group = scene.group.replicas.get(replica_number(name)), scene.group
        if name not in scene.actors or seen is None or seen.pid is None:
            return f"{name} does not answer yet"
        if group.master is None:
            return f"{group.name} has no master"
        if seen.number not in (group.in_sync or ()) or (not seen.is_master and seen.lag_bytes is None):
            behind = "" if not seen.lag_bytes else f": {seen.lag_bytes >> 20} MiB behind"
            return f"{name} is not in sync yet{behind}"
        return ""

    def _next_remove_step(self, old: str, scene: ReplicaChangeState) -> Step:
        seen = scene.group.replicas.get(replica_number(old))
        others = (scene.group.in_sync or frozenset()) - {replica_number(old)}
        if old in scene.actors:
            if not others:
                return self._wait(f"no replica but {old} is in sync")
            if seen is not None and seen.is_master:
                self._handovers += 1
                if self._handovers > _MAX_HANDOVERS:
                    raise self._stall_error(f"{old} has not handed over in {_MAX_HANDOVERS} tries")
                new = self._wanted.new
                return TransferMaster(self._group, replica_number(new) if new is not None else min(others))
            if old not in scene.layout.removed:
                return SaveLayout(scene.layout.without(old), f"{old} is removed for good")
            return StopReplica(old)
        if old not in scene.layout.removed:
            return SaveLayout(scene.layout.without(old), f"{old} is removed for good")
        if scene.registered.get(old):
            return self._wait(f"{old} still counts as in sync")
        return DeregisterReplica(old)

    def _wait(self, why: str) -> WaitStep:
        if self._patience.has_expired(why):
            raise self._stall_error(f"{why}, for too long")
        return WaitStep(why)

    def _stall_error(self, why: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            self._group,
            f"{why}; the change stays under way: {self._wanted.describe()}",
            remedy="repeat the call when this is solved"
            + (f", or remove {self._wanted.new} with Admin.remove_broker" if self._wanted.new else ""),
        )


def pending_changes(layout: ClusterLayout, group: str) -> ReplicaChange | None:
    """Return the replica change in progress in a group, None if there is none."""
    raw = layout.pending_changes.get(group)
    return (
        None if raw is None or raw.get("verb") not in ("add", "move", "remove") else msgspec.convert(raw, ReplicaChange)
    )


def planned(group: str, change: ReplicaChange, min_in_sync: int, scene: ReplicaChangeState) -> ReplicaChange:
    """Return the change to carry out: the one in progress if it is the same.

    Raises:
        InvalidInput: another change of the group is in progress, or the change is not possible.
    """
    layout = scene.layout
    begun = layout.pending_changes.get(group)
    if begun is not None:
        known = pending_changes(layout, group)
        if known is None:
            raise InvalidInput("broker", f"a group in which nothing else is under way ({begun.get('verb')})", group)
        same = change.verb == known.verb and change.old == known.old and change.machine in ("", known.machine)
        if same:
            return known
        if change.verb != "remove" or change.old != known.new or known.old in layout.removed:
            raise InvalidInput(
                "broker",
                f"a group in which nothing is under way: {known.describe()} ({known.verb})",
                group,
                remedy=f"repeat that call, which finishes the change, or remove {known.new} with Admin.remove_broker",
            )
    if change.old is not None:
        _check_old(change, scene, min_in_sync)
        if change.new is not None and layout.machines.get(change.old) == change.machine:
            raise InvalidInput("host", f"another machine than the one that {change.old} is on", change.machine)
    return change


def free_replica_name(group: str, scene: ReplicaChangeState) -> str:
    """Return the actor name of an additional replica, with a number never used if possible.

    Raises:
        InvalidInput: the group has the largest number of replicas.
    """
    names = [replica_name(group, number) for number in range(MAX_REPLICAS)]
    taken = {*scene.actors, *scene.registered, *scene.layout.machines}
    free = [name for name in names if name not in taken]
    if not free:
        raise InvalidInput("replicas", f"at most {MAX_REPLICAS} of a group", len(names) + 1)
    return min(free, key=lambda name: (name in scene.layout.removed, replica_number(name)))


def _check_old(change: ReplicaChange, scene: ReplicaChangeState, min_in_sync: int) -> None:
    old = change.old
    assert old is not None
    known = {*scene.actors, *scene.registered}
    written = {*known, *scene.layout.machines, *scene.layout.removed}  # Also a replica that never started.
    if old not in written:
        replicas = sorted(name for name in known if is_replica_of(name, group_name(old)))
        raise InvalidInput("replica", f"one of {', '.join(replicas)}", old)
    remaining = (scene.group.in_sync or frozenset()) - {replica_number(old)}
    if change.new is None and old in known and len(remaining) < max(1, min_in_sync):
        raise InvalidInput(
            "replica",
            f"a replica without which at least {max(1, min_in_sync)} replicas are in sync (min_in_sync)",
            old,
            remedy="add another one first",
        )


def dry_run_steps(group: str, change: ReplicaChange, scene: ReplicaChangeState) -> list[str]:
    """Return the descriptions of the steps, assuming that each succeeds."""
    plan, steps = ReplicaChangePlanner(group, change, lambda: 0.0), []
    while (step := plan.next(scene)) is not None:
        steps.append(str(step))
        scene = _after(step, scene)
    return steps


def _after(step: Step, scene: ReplicaChangeState) -> ReplicaChangeState:
    """Return the state after a step that has succeeded."""
    group, replicas = scene.group, dict(scene.group.replicas)
    if isinstance(step, SaveLayout):
        return replace(scene, layout=step.layout)
    if isinstance(step, StartReplica):
        replicas[replica_number(step.name)] = ObservedReplica(group.name, replica_number(step.name), 1, lag_bytes=0)
        in_sync = (group.in_sync or frozenset()) | {replica_number(step.name)}
        registered = {**scene.registered, step.name: True}
        seen = replace(group, replicas=replicas, in_sync=in_sync)
        return replace(scene, group=seen, actors=scene.actors | {step.name}, registered=registered)
    if isinstance(step, TransferMaster):
        replicas = {n: replace(each, is_master=n == step.replica, lag_bytes=0) for n, each in replicas.items()}
        return replace(scene, group=replace(group, replicas=replicas))
    if isinstance(step, StopReplica):
        replicas.pop(replica_number(step.name), None)
        in_sync = (group.in_sync or frozenset()) - {replica_number(step.name)}
        registered = {name: each and name != step.name for name, each in scene.registered.items()}
        seen = replace(group, replicas=replicas, in_sync=in_sync)
        return replace(scene, group=seen, actors=scene.actors - {step.name}, registered=registered)
    if isinstance(step, DeregisterReplica):
        return replace(scene, registered={name: v for name, v in scene.registered.items() if name != step.name})
    whole = {n: replace(each, pid=each.pid or 1, lag_bytes=each.lag_bytes or 0) for n, each in replicas.items()}
    if group.master is None and whole:
        whole[min(whole)] = replace(whole[min(whole)], is_master=True)
    return replace(scene, group=replace(group, replicas=whole, in_sync=frozenset(whole)))
