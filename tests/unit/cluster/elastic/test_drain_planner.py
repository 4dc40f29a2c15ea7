"""Test the planner of drains: a group ends only when it is empty, and interrupted drains continue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.wire.commands.drain_commands import DrainBacklog
from raymq.client.cluster_changes import DrainOptions
from raymq.cluster.cluster_layout import ClusterLayout
from raymq.cluster.elastic.change_steps import SaveLayout, SetPermission, StopReplica, WaitStep
from raymq.cluster.elastic.drain_planner import (
    DrainPlanner,
    DrainState,
    Step,
    count_writable_groups,
    describe_pending,
    next_cancel_step,
)
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica

GROUP = "broker-b"
EMPTY = DrainBacklog()
BUSY = DrainBacklog(unconsumed={("g", "t"): 7}, unconsumed_messages=7)


def scene(remains: DrainBacklog | None = EMPTY, *, permission: int | None = 6, others: int = 1) -> DrainState:
    machines = {"broker-a": "h1", "broker-b": "h2", "broker-b.1": "h1"}
    return DrainState(ClusterLayout(machines, 2), ("broker-b.1", "broker-b"), permission, remains, True, others)


def scene_in_drain(remains: DrainBacklog | None = EMPTY, permission: int | None = 4) -> DrainState:
    now = scene(remains, permission=permission)
    return replace(now, layout=now.layout.with_change(GROUP, {"verb": "drain"}))


def apply_step(step: Step, now: DrainState, plan: DrainPlanner) -> DrainState:
    if isinstance(step, SaveLayout):
        return replace(now, layout=step.layout)
    if isinstance(step, SetPermission):
        return replace(now, permission=step.permission)
    if isinstance(step, StopReplica):
        actors = tuple(name for name in now.actors if name != step.name)
        gone = replace(now, actors=actors, is_routed=bool(actors))
        return gone if actors else replace(gone, permission=None, remains=None)
    plan.record_done(step)
    return now


def run_drain(wanted: DrainOptions, now: DrainState, most: int = 100) -> tuple[list[str], DrainState]:
    plan, steps = DrainPlanner(GROUP, wanted), list[str]()
    while most and (step := plan.next(now)) is not None:
        if not isinstance(step, WaitStep):
            steps.append(str(step))
            most -= 1
        now = apply_step(step, now, plan)
    return steps, now


def test_drain_makes_the_group_read_only() -> None:
    steps, now = run_drain(DrainOptions(), scene())
    assert steps == ["saves: broker-b is being drained", "makes broker-b read only"]
    assert (now.layout.pending_changes, now.actors) == ({GROUP: {"verb": "drain"}}, ("broker-b.1", "broker-b"))


def test_drain_with_remove_stops_replicas_first() -> None:
    steps, now = run_drain(DrainOptions(remove=True), scene())
    assert steps == [
        "saves: broker-b is being drained",
        "makes broker-b read only",
        "saves: broker-b is removed for good",
        "ends broker-b.1",
        "ends broker-b",
        "removes broker-b from all records",
        "saves: broker-b is removed",
    ]
    assert now.layout.names(2, 2) == ["broker-a", "broker-a.1"]
    assert (now.layout.pending_changes, DrainPlanner(GROUP, DrainOptions(remove=True)).next(now)) == ({}, None)


def test_interrupted_drain_continues_after_any_step() -> None:
    wanted = DrainOptions(remove=True)
    steps, whole = run_drain(wanted, scene())
    for ends_after in range(len(steps)):
        first, now = run_drain(wanted, scene(), ends_after)
        rest, last = run_drain(wanted, now)
        assert last == whole
        again = ["removes broker-b from all records"] if first[-1:] == ["removes broker-b from all records"] else []
        assert first + rest == steps[:ends_after] + again + steps[ends_after:]


def test_drain_removes_no_group_with_pending_messages() -> None:
    plan = DrainPlanner(GROUP, DrainOptions(remove=True))
    assert plan.next(scene_in_drain(BUSY)) == WaitStep("broker-b has 7 messages of t for group g")
    assert isinstance(plan.next(scene_in_drain()), WaitStep)
    assert isinstance(plan.next(scene_in_drain(None, None)), WaitStep), "a master that is away for a moment"
    for _ in range(2):
        assert plan.next(scene_in_drain()) == WaitStep("broker-b seems to be empty")
    assert isinstance(plan.next(scene_in_drain()), SaveLayout)


@pytest.mark.parametrize(
    ("remains", "told"),
    [
        (EMPTY, ""),
        (DrainBacklog(delayed=2, timers=3), "2 delayed messages, 3 timers"),
        (
            DrainBacklog(lent=1, staged=4, writes=5),
            "1 messages in flight, 4 staged writes, 5 writes that it coordinates",
        ),
        (
            DrainBacklog(unconsumed={("g", f"{n}"): 9 - n for n in range(4)}, unconsumed_messages=40),
            ", ".join(f"{9 - n} messages of {n} for group g" for n in range(3)) + ", 16 messages for others",
        ),
        (DrainBacklog(homes=2, dead_letters={"g": 1}), ""),
    ],
)
def test_backlog_is_described(remains: DrainBacklog, told: str) -> None:
    assert describe_pending(remains) == told


def test_ignored_groups_are_left_out_of_the_backlog() -> None:
    assert describe_pending(BUSY, frozenset({"g"})) == ""
    two = DrainBacklog(unconsumed={("g", "t"): 7, ("h", "t"): 1}, unconsumed_messages=8)
    assert describe_pending(two, frozenset({"g"})) == "1 messages of t for group h"


def test_messages_leased_to_other_groups_are_awaited() -> None:
    """An unacknowledged message must be delivered again to the group that it was leased to."""
    lent = DrainBacklog(lent=5, lent_to={"g": 2, "h": 3})
    assert describe_pending(lent, frozenset({"g"})) == "3 messages in flight"
    assert describe_pending(lent, frozenset({"g", "h"})) == ""
    assert describe_pending(DrainBacklog(lent=5), frozenset({"g"})) == "5 messages in flight", (
        "of a broker that does not say"
    )


def test_removed_group_leaves_no_replica_in_the_layout() -> None:
    """The actor of such a replica need not run."""
    now = replace(scene(), actors=("broker-b",))
    steps, after_all = run_drain(DrainOptions(remove=True), now)
    assert steps[-1] == "saves: broker-b is removed"
    assert after_all.layout.names(2, 2) == ["broker-a", "broker-a.1"]
    bare = replace(scene(), layout=ClusterLayout({"broker-a": "h1"}, 2), actors=("broker-b",))
    assert run_drain(DrainOptions(remove=True), bare)[1].layout.names(2, 2) == ["broker-a", "broker-a.1"]


@pytest.mark.parametrize("stays", [DrainBacklog(homes=1), DrainBacklog(dead_letters={"g": 3})])
def test_permanent_data_is_removed_only_with_lose(stays: DrainBacklog) -> None:
    for now in (scene(stays), scene_in_drain(stays)):
        with pytest.raises(InvalidInput, match="--lose"):
            run_drain(DrainOptions(remove=True), now)
    assert run_drain(DrainOptions(), scene(stays))[0][-1] == "makes broker-b read only"
    assert run_drain(DrainOptions(remove=True, lose=True), scene(stays))[0][-1] == "saves: broker-b is removed"


def test_last_writable_group_is_not_drained() -> None:
    with pytest.raises(InvalidInput, match="another broker group takes messages"):
        DrainPlanner(GROUP, DrainOptions()).next(scene(others=0))


def test_group_without_master_or_in_drain_is_not_writable() -> None:
    def group(name: str, *, has_master: bool = True) -> ObservedGroup:
        return ObservedGroup(name, {0: ObservedReplica(name, 0, 1 if has_master else None, is_master=has_master)})

    groups = {each.name: each for each in (group("broker-a"), group(GROUP), group("broker-c", has_master=False))}
    assert count_writable_groups(groups, ClusterLayout(), GROUP) == 1
    assert count_writable_groups(groups, ClusterLayout().with_change("broker-a", {"verb": "drain"}), GROUP) == 0
    assert count_writable_groups(groups, ClusterLayout().with_change("broker-a", {"verb": "move"}), GROUP) == 1
    assert count_writable_groups({name: groups[name] for name in (GROUP, "broker-c")}, ClusterLayout(), GROUP) == 0


def test_group_with_an_exclusive_topic_is_not_drained() -> None:
    """A topic of the drained group alone could not be sent to any more."""
    for wanted in (DrainOptions(), DrainOptions(remove=True)):
        with pytest.raises(InvalidInput, match="a, b, c and 1 more"):
            DrainPlanner(GROUP, wanted, ["a", "b", "c", "d"]).next(scene())
    for wanted, now in ((DrainOptions(lose=True), scene()), (DrainOptions(), scene_in_drain())):
        assert DrainPlanner(GROUP, wanted, ["a"]).next(now) is not None


def test_drain_is_refused_during_another_change() -> None:
    now = scene()
    now = replace(now, layout=now.layout.with_change(GROUP, {"verb": "move"}))
    with pytest.raises(InvalidInput, match="nothing else is under way"):
        DrainPlanner(GROUP, DrainOptions()).next(now)


def test_drain_can_be_cancelled_until_the_removal_begins() -> None:
    layout = scene_in_drain().layout
    assert isinstance(next_cancel_step(GROUP, layout, None), WaitStep)
    assert next_cancel_step(GROUP, layout, 4) == SetPermission(GROUP, 6)
    last = next_cancel_step(GROUP, layout, 6)
    assert isinstance(last, SaveLayout)
    assert next_cancel_step(GROUP, last.layout, 6) is None
    with pytest.raises(InvalidInput, match="removal has not begun"):
        next_cancel_step(GROUP, layout.with_change(GROUP, {"verb": "drain", "going": True}), 4)
