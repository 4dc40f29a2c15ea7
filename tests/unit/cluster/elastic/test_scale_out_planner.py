"""Test the planner that adds a broker group: its steps, and how it continues after an interruption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster.cluster_layout import ClusterLayout
from raymq.cluster.elastic.change_steps import CopyMetadata, RegisterGroup, SaveLayout, StartReplica, WaitStep
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica
from raymq.cluster.elastic.scale_out_planner import ScaleOut, ScaleOutPlanner, ScaleOutState, dry_run_steps, planned
from raymq.cluster.elastic.stall_timeout import STALL_TIMEOUT_SECONDS

WANTED = ScaleOut("broker-c", {"broker-c": "h3", "broker-c.1": "h1"}, ("t",))


def scene(*, is_replicated: bool = True) -> ScaleOutState:
    return ScaleOutState(ClusterLayout({"broker-a": "h1", "broker-b": "h2"}, 2), (), None, is_replicated, None)


def scene_in_scale_out() -> ScaleOutState:
    layout = scene().layout.with_added(WANTED.machines).with_change("broker-c", WANTED.to_json())
    return replace(scene(), layout=layout)


def group_in_sync() -> ObservedGroup:
    replicas = {n: ObservedReplica("broker-c", n, n + 1, is_master=n == 0, lag_bytes=0) for n in (0, 1)}
    return ObservedGroup("broker-c", replicas, frozenset({0, 1}))


def test_scale_out_steps_are_in_order() -> None:
    assert dry_run_steps(WANTED, scene().layout, ("t",), is_replicated=True) == [
        "saves: broker-c is added: broker-c on h3, broker-c.1 on h1",
        "registers broker-c",
        "starts broker-c on h3",
        "starts broker-c.1 on h1",
        "creates topics on broker-c: t",
        "saves: broker-c is complete",
    ]


def test_unreplicated_group_is_not_registered() -> None:
    steps = dry_run_steps(ScaleOut("broker-c", {"broker-c": "h3"}, ()), scene().layout, (), is_replicated=False)
    assert "registers broker-c" not in steps
    assert "creates topics on broker-c: none" in steps, "consumer groups are made in any case"


def test_topics_are_copied_when_all_replicas_are_in_sync() -> None:
    plan, now = ScaleOutPlanner(WANTED, lambda: 0.0), replace(scene_in_scale_out(), actors={"broker-c", "broker-c.1"})
    assert plan.next(now) == WaitStep("broker-c is not in the routes")
    lagging = replace(group_in_sync(), in_sync=frozenset({0}))
    assert plan.next(replace(now, group=lagging)) == WaitStep("broker-c.1 is not in sync")
    assert plan.next(replace(now, group=group_in_sync())) == WaitStep("its topics are not known yet")
    assert plan.next(replace(now, group=group_in_sync(), missing_topics=("t",))) == CopyMetadata("broker-c", ("t",))
    plan.is_copied = True
    assert isinstance(plan.next(replace(now, group=group_in_sync(), missing_topics=())), SaveLayout)


def test_interrupted_scale_out_continues() -> None:
    assert ScaleOutPlanner(WANTED, lambda: 0.0).next(scene_in_scale_out()) == RegisterGroup("broker-c")
    some = replace(scene_in_scale_out(), actors={"broker-c"})
    plan = ScaleOutPlanner(WANTED, lambda: 0.0)
    plan.is_registered = True
    assert plan.next(some) == StartReplica("broker-c.1", "h1")
    assert planned(scene_in_scale_out().layout, 2, None, []) == "broker-c", (
        "the one that is under way, not the next letter"
    )
    assert ScaleOut.from_json("broker-c", scene_in_scale_out().layout.pending_changes["broker-c"]) == WANTED


def test_scale_out_fails_if_a_group_does_not_start() -> None:
    now = 0.0
    plan, made = ScaleOutPlanner(WANTED, lambda: now), replace(scene_in_scale_out(), actors={"broker-c", "broker-c.1"})
    plan.next(made)
    now = STALL_TIMEOUT_SECONDS
    with pytest.raises(BrokerUnavailable, match=r"broker-c.*for too long"):
        plan.next(made)


def test_scale_out_waits_for_the_first_topic_list() -> None:
    """The clock starts high, as after a long uptime, and the group starts at once."""
    plan = ScaleOutPlanner(WANTED, lambda: 10 * STALL_TIMEOUT_SECONDS)
    assert plan.next(
        replace(scene_in_scale_out(), actors={"broker-c", "broker-c.1"}, group=group_in_sync())
    ) == WaitStep("its topics are not known yet")


def test_new_group_names_are_chosen_or_checked() -> None:
    layout = ClusterLayout({"broker-a": "h1", "broker-b": "h2"}).without("broker-b")
    assert planned(layout, 2, None, ["broker-a"]) == "broker-c"
    assert planned(layout, 2, "broker-k", ["broker-a"]) == "broker-k"
    for name in ("broker-a", "broker-b", "broker-c.1", "../etc", "Broker"):
        with pytest.raises(InvalidInput, match="name"):
            planned(layout, 2, name, ["broker-a"])
