"""A broker group more: founded, made, waited for, and given topics; over any interruption."""

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


def noted() -> ScaleOutState:
    layout = scene().layout.with_added(WANTED.machines).with_change("broker-c", WANTED.to_json())
    return replace(scene(), layout=layout)


def whole() -> ObservedGroup:
    replicas = {n: ObservedReplica("broker-c", n, n + 1, is_master=n == 0, lag_bytes=0) for n in (0, 1)}
    return ObservedGroup("broker-c", replicas, frozenset({0, 1}))


def test_all_steps_in_their_order() -> None:
    assert dry_run_steps(WANTED, scene().layout, ("t",), is_replicated=True) == [
        "saves: broker-c is added: broker-c on h3, broker-c.1 on h1",
        "registers broker-c",
        "starts broker-c on h3",
        "starts broker-c.1 on h1",
        "creates topics on broker-c: t",
        "saves: broker-c is complete",
    ]


def test_a_group_of_one_copy_has_no_register() -> None:
    told = dry_run_steps(ScaleOut("broker-c", {"broker-c": "h3"}, ()), scene().layout, (), is_replicated=False)
    assert "registers broker-c" not in told
    assert "creates topics on broker-c: none" in told, "consumer groups are made in any case"


def test_topics_come_when_the_group_is_whole() -> None:
    plan, now = ScaleOutPlanner(WANTED, lambda: 0.0), replace(noted(), actors={"broker-c", "broker-c.1"})
    assert plan.next(now) == WaitStep("broker-c is not in the routes")
    lagging = replace(whole(), in_sync=frozenset({0}))
    assert plan.next(replace(now, group=lagging)) == WaitStep("broker-c.1 is not in sync")
    assert plan.next(replace(now, group=whole())) == WaitStep("its topics are not known yet")
    assert plan.next(replace(now, group=whole(), missing_topics=("t",))) == CopyMetadata("broker-c", ("t",))
    plan.is_copied = True
    assert isinstance(plan.next(replace(now, group=whole(), missing_topics=())), SaveLayout)


def test_one_that_was_interrupted_goes_on() -> None:
    assert ScaleOutPlanner(WANTED, lambda: 0.0).next(noted()) == RegisterGroup("broker-c")
    some = replace(noted(), actors={"broker-c"})
    plan = ScaleOutPlanner(WANTED, lambda: 0.0)
    plan.is_registered = True
    assert plan.next(some) == StartReplica("broker-c.1", "h1")
    assert planned(noted().layout, 2, None, []) == "broker-c", "the one that is under way, not the next letter"
    assert ScaleOut.from_json("broker-c", noted().layout.pending_changes["broker-c"]) == WANTED


def test_one_that_does_not_come_up_ends_it() -> None:
    now = 0.0
    plan, made = ScaleOutPlanner(WANTED, lambda: now), replace(noted(), actors={"broker-c", "broker-c.1"})
    plan.next(made)
    now = STALL_TIMEOUT_SECONDS
    with pytest.raises(BrokerUnavailable, match=r"broker-c.*for too long"):
        plan.next(made)


def test_a_look_that_brings_no_topics_is_waited_for_whatever_the_clock_says() -> None:
    """A machine that has been up for long, and a group that is there at once."""
    plan = ScaleOutPlanner(WANTED, lambda: 10 * STALL_TIMEOUT_SECONDS)
    assert plan.next(replace(noted(), actors={"broker-c", "broker-c.1"}, group=whole())) == WaitStep(
        "its topics are not known yet"
    )


def test_names_of_new_groups() -> None:
    layout = ClusterLayout({"broker-a": "h1", "broker-b": "h2"}).without("broker-b")
    assert planned(layout, 2, None, ["broker-a"]) == "broker-c"
    assert planned(layout, 2, "broker-k", ["broker-a"]) == "broker-k"
    for name in ("broker-a", "broker-b", "broker-c.1", "../etc", "Broker"):
        with pytest.raises(InvalidInput, match="name"):
            planned(layout, 2, name, ["broker-a"])
