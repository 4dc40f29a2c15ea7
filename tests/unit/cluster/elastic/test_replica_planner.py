"""Test the planner that adds, moves and removes replicas, and how it continues after an interruption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster.cluster_layout import ClusterLayout
from raymq.cluster.elastic.change_steps import (
    DeregisterReplica,
    SaveLayout,
    StartReplica,
    StopReplica,
    TransferMaster,
    WaitStep,
)
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica
from raymq.cluster.elastic.replica_planner import (
    ReplicaChange,
    ReplicaChangePlanner,
    ReplicaChangeState,
    _after,
    dry_run_steps,
    free_replica_name,
    planned,
)
from raymq.cluster.elastic.stall_timeout import STALL_TIMEOUT_SECONDS

GROUP = "broker-a"
ADD = ReplicaChange("add", "broker-a.2", "h3")
MOVE = ReplicaChange("move", "broker-a.2", "h3", "broker-a")
REMOVE = ReplicaChange("remove", old="broker-a.1")


def scene(
    *, master: int = 0, in_sync: tuple[int, ...] = (0, 1), layout: ClusterLayout | None = None
) -> ReplicaChangeState:
    replicas = {n: ObservedReplica(GROUP, n, 10 + n, is_master=n == master, lag_bytes=0) for n in (0, 1)}
    names = ["broker-a", "broker-a.1"]
    return ReplicaChangeState(
        layout or ClusterLayout(dict(zip(names, ("h1", "h2"), strict=True)), 2),
        frozenset(names),
        ObservedGroup(GROUP, replicas, frozenset(in_sync)),
        {name: number in in_sync for number, name in enumerate(names)},
    )


def run_change(wanted: ReplicaChange, now: ReplicaChangeState) -> tuple[list[str], ReplicaChangeState]:
    plan, steps = ReplicaChangePlanner(GROUP, wanted, lambda: 0.0), []
    while (step := plan.next(now)) is not None:
        steps.append(str(step))
        now = _after(step, now)
    return steps, now


def test_added_replica_is_saved_started_and_awaited() -> None:
    plan, now = ReplicaChangePlanner(GROUP, ADD, lambda: 0.0), scene()
    first = plan.next(now)
    assert isinstance(first, SaveLayout)
    assert (first.layout.machines["broker-a.2"], first.layout.added) == ("h3", {"broker-a.2"})
    assert first.layout.pending_changes[GROUP] == ADD.to_json()
    now = replace(now, layout=first.layout)
    assert plan.next(now) == StartReplica("broker-a.2", "h3")
    now = replace(now, actors=now.actors | {"broker-a.2"})
    assert plan.next(now) == WaitStep("broker-a.2 does not answer yet")
    behind = {**now.group.replicas, 2: ObservedReplica(GROUP, 2, 12, lag_bytes=7 << 20)}
    now = replace(now, group=replace(now.group, replicas=behind))
    assert plan.next(now) == WaitStep("broker-a.2 is not in sync yet: 7 MiB behind")
    now = replace(now, group=replace(now.group, in_sync=frozenset({0, 1, 2})))
    last = plan.next(now)
    assert isinstance(last, SaveLayout)
    assert last.layout.pending_changes == {}
    assert plan.next(replace(now, layout=last.layout)) is None


def test_moved_master_hands_over_to_the_new_replica() -> None:
    steps, after = run_change(MOVE, scene())
    assert steps == [
        "saves: broker-a.2 is added on h3 in place of broker-a",
        "starts broker-a.2 on h3",
        "hands broker-a over to broker-a.2",
        "saves: broker-a is removed for good",
        "ends broker-a",
        "takes broker-a out of the register",
        "saves: broker-a.2 is added on h3 in place of broker-a: done",
    ]
    assert after.layout.names(1, 2) == ["broker-a.1", "broker-a.2"]
    assert (after.layout.pending_changes, sorted(after.registered)) == ({}, ["broker-a.1", "broker-a.2"])
    assert dry_run_steps(GROUP, MOVE, scene()) == steps


def test_replica_that_never_started_can_be_removed() -> None:
    """Its machine died before the replica started, so only the layout has it."""
    for wanted in (ADD, MOVE):
        now = scene()
        first = ReplicaChangePlanner(GROUP, wanted, lambda: 0.0).next(now)
        assert isinstance(first, SaveLayout)
        now = replace(now, layout=first.layout)
        away = planned(GROUP, ReplicaChange("remove", old="broker-a.2"), 1, now)
        steps, after = run_change(away, now)
        assert steps[-1] == "saves: broker-a.2 is removed: done"
        assert (after.layout.pending_changes, after.layout.names(1, 2)) == ({}, ["broker-a", "broker-a.1"])
    with pytest.raises(InvalidInput, match="one of"):
        planned(GROUP, ReplicaChange("remove", old="broker-a.7"), 1, scene())


def test_old_replica_stays_until_the_new_one_is_in_sync() -> None:
    begun = scene(layout=ClusterLayout({"broker-a": "h1", "broker-a.2": "h3"}, 2).with_change(GROUP, MOVE.to_json()))
    lagging = {**begun.group.replicas, 2: ObservedReplica(GROUP, 2, 12, lag_bytes=1)}
    now = replace(begun, actors=begun.actors | {"broker-a.2"}, group=replace(begun.group, replicas=lagging))
    assert isinstance(ReplicaChangePlanner(GROUP, MOVE, lambda: 0.0).next(now), WaitStep)


def test_stopped_replica_is_deregistered_when_out_of_sync_set() -> None:
    layout = scene().layout.without("broker-a.1").with_change(GROUP, REMOVE.to_json())
    now = scene(layout=layout)
    now = replace(now, actors=frozenset({"broker-a"}))
    assert ReplicaChangePlanner(GROUP, REMOVE, lambda: 0.0).next(now) == WaitStep("broker-a.1 still counts as in sync")
    now = replace(now, registered={"broker-a": True, "broker-a.1": False})
    assert ReplicaChangePlanner(GROUP, REMOVE, lambda: 0.0).next(now) == DeregisterReplica("broker-a.1")


def test_replica_on_a_lost_machine_can_be_removed() -> None:
    gone = {**scene().group.replicas, 1: ObservedReplica(GROUP, 1, None)}
    now = replace(scene(in_sync=(0,)), group=ObservedGroup(GROUP, gone, frozenset({0})))
    assert "ends broker-a.1" in run_change(planned(GROUP, REMOVE, 1, now), now)[0]


@pytest.mark.parametrize("wanted", [ADD, MOVE, REMOVE], ids=["add", "move", "remove"])
def test_interrupted_replica_change_continues_after_any_step(wanted: ReplicaChange) -> None:
    steps, whole = run_change(wanted, scene())
    for ends_after in range(len(steps)):
        now, plan = scene(), ReplicaChangePlanner(GROUP, wanted, lambda: 0.0)
        for _ in range(ends_after):
            step = plan.next(now)
            assert step is not None
            now = _after(step, now)
        fresh = replace(wanted, new=free_replica_name(GROUP, now)) if wanted.new else wanted
        again = planned(GROUP, fresh, 1, now)
        assert again == wanted, "the one that is under way"
        rest, after = run_change(again, now)
        assert (rest, after) == (steps[ends_after:], whole)


def test_pending_replica_can_be_removed() -> None:
    layout = scene().layout.with_added({"broker-a.2": "h3"}).with_change(GROUP, ADD.to_json())
    now = scene(layout=layout)
    away = ReplicaChange("remove", old="broker-a.2")
    assert planned(GROUP, away, 1, replace(now, actors=now.actors | {"broker-a.2"})) == away
    with pytest.raises(InvalidInput, match=r"nothing is under way: broker-a\.2 is added on h3 \(add\)"):
        planned(GROUP, REMOVE, 1, now)


@pytest.mark.parametrize(
    ("wanted", "least", "match"),
    [
        (ReplicaChange("remove", old="broker-a.7"), 1, r"one of broker-a, broker-a\.1"),
        (REMOVE, 2, "at least 2 replicas are in sync"),
        (ReplicaChange("move", "broker-a.2", "h1", "broker-a"), 1, "another machine"),
    ],
)
def test_impossible_replica_change_is_refused(wanted: ReplicaChange, least: int, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        planned(GROUP, wanted, least, scene())


def test_last_in_sync_replica_is_not_removed() -> None:
    with pytest.raises(InvalidInput, match="at least 1 replicas"):
        planned(GROUP, ReplicaChange("remove", old="broker-a"), 1, scene(in_sync=(0,)))


def test_stalled_change_error_names_the_pending_change() -> None:
    now = 0.0
    plan = ReplicaChangePlanner(GROUP, ADD, lambda: now)
    begun = scene(layout=ClusterLayout().with_added({"broker-a.2": "h3"}).with_change(GROUP, ADD.to_json()))
    begun = replace(begun, actors=begun.actors | {"broker-a.2"})
    assert isinstance(plan.next(begun), WaitStep)
    now = STALL_TIMEOUT_SECONDS
    with pytest.raises(
        BrokerUnavailable, match=r"the change stays under way: broker-a\.2 is added on h3.*Admin.remove_broker"
    ):
        plan.next(begun)


def test_change_fails_after_three_failed_handovers() -> None:
    layout = scene().layout.with_change(GROUP, ReplicaChange("remove", old="broker-a").to_json())
    plan = ReplicaChangePlanner(GROUP, ReplicaChange("remove", old="broker-a"), lambda: 0.0)
    for _ in range(3):
        assert plan.next(scene(layout=layout)) == TransferMaster(GROUP, 1)
    with pytest.raises(BrokerUnavailable, match="has not handed over"):
        plan.next(scene(layout=layout))


def test_new_replica_gets_the_first_unused_number() -> None:
    assert free_replica_name(GROUP, scene()) == "broker-a.2"
    assert free_replica_name(GROUP, scene(layout=scene().layout.without("broker-a.2"))) == "broker-a.3"
    numbers = {f"broker-a.{n}" for n in range(2, 16)}
    assert free_replica_name(GROUP, scene(layout=scene().layout.without(*numbers))) == "broker-a.2"
    with pytest.raises(InvalidInput, match="at most 16"):
        free_replica_name(GROUP, replace(scene(), actors=numbers | scene().actors))


def test_removal_is_saved_before_the_actor_stops() -> None:
    now = scene(layout=scene().layout.with_change(GROUP, REMOVE.to_json()))
    first = ReplicaChangePlanner(GROUP, REMOVE, lambda: 0.0).next(now)
    assert isinstance(first, SaveLayout)
    assert "broker-a.1" in first.layout.removed
    assert ReplicaChangePlanner(GROUP, REMOVE, lambda: 0.0).next(replace(now, layout=first.layout)) == StopReplica(
        "broker-a.1"
    )
