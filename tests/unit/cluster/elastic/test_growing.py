"""A broker group more: founded, made, waited for, and given topics; over any interruption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster.elastic.growing import Growing, GrowScene, NewGroup, planned, rehearsed
from raymq.cluster.elastic.patience import PATIENCE_SECONDS
from raymq.cluster.elastic.seen import GroupSeen, ReplicaSeen
from raymq.cluster.elastic.steps import FoundGroup, Make, Spread, Wait, WriteDown
from raymq.cluster.layout import Layout

WANTED = NewGroup("broker-c", {"broker-c": "h3", "broker-c.1": "h1"}, ("t",))


def scene(*, is_replicated: bool = True) -> GrowScene:
    return GrowScene(Layout({"broker-a": "h1", "broker-b": "h2"}, 2), (), None, is_replicated, None)


def noted() -> GrowScene:
    layout = scene().layout.with_added(WANTED.machines).with_change("broker-c", WANTED.to_json())
    return replace(scene(), layout=layout)


def whole() -> GroupSeen:
    replicas = {n: ReplicaSeen("broker-c", n, n + 1, is_master=n == 0, lag_bytes=0) for n in (0, 1)}
    return GroupSeen("broker-c", replicas, frozenset({0, 1}))


def test_all_steps_in_their_order() -> None:
    assert rehearsed(WANTED, scene().layout, ("t",), is_replicated=True) == [
        "writes down: broker-c comes: broker-c on h3, broker-c.1 on h1",
        "founds broker-c",
        "starts broker-c on h3",
        "starts broker-c.1 on h1",
        "makes topics on broker-c: t",
        "writes down: broker-c is there",
    ]


def test_a_group_of_one_copy_has_no_register() -> None:
    told = rehearsed(NewGroup("broker-c", {"broker-c": "h3"}, ()), scene().layout, (), is_replicated=False)
    assert "founds broker-c" not in told
    assert "makes topics on broker-c: none" in told, "consumer groups are made in any case"


def test_topics_come_when_the_group_is_whole() -> None:
    plan, now = Growing(WANTED, lambda: 0.0), replace(noted(), actors={"broker-c", "broker-c.1"})
    assert plan.next(now) == Wait("broker-c is not in the routes")
    lagging = replace(whole(), in_sync=frozenset({0}))
    assert plan.next(replace(now, group=lagging)) == Wait("broker-c.1 is not in sync")
    assert plan.next(replace(now, group=whole())) == Wait("its topics are not known yet")
    assert plan.next(replace(now, group=whole(), lacks=("t",))) == Spread("broker-c", ("t",))
    plan.is_spread = True
    assert isinstance(plan.next(replace(now, group=whole(), lacks=())), WriteDown)


def test_one_that_was_interrupted_goes_on() -> None:
    assert Growing(WANTED, lambda: 0.0).next(noted()) == FoundGroup("broker-c")
    some = replace(noted(), actors={"broker-c"})
    plan = Growing(WANTED, lambda: 0.0)
    plan.is_founded = True
    assert plan.next(some) == Make("broker-c.1", "h1")
    assert planned(noted().layout, 2, None, []) == "broker-c", "the one that is under way, not the next letter"
    assert NewGroup.from_json("broker-c", noted().layout.under_way["broker-c"]) == WANTED


def test_one_that_does_not_come_up_ends_it() -> None:
    now = 0.0
    plan, made = Growing(WANTED, lambda: now), replace(noted(), actors={"broker-c", "broker-c.1"})
    plan.next(made)
    now = PATIENCE_SECONDS
    with pytest.raises(BrokerUnavailable, match=r"broker-c.*for too long"):
        plan.next(made)


def test_a_look_that_brings_no_topics_is_waited_for_whatever_the_clock_says() -> None:
    """A machine that has been up for long, and a group that is there at once."""
    plan = Growing(WANTED, lambda: 10 * PATIENCE_SECONDS)
    assert plan.next(replace(noted(), actors={"broker-c", "broker-c.1"}, group=whole())) == Wait(
        "its topics are not known yet"
    )


def test_names_of_new_groups() -> None:
    layout = Layout({"broker-a": "h1", "broker-b": "h2"}).without("broker-b")
    assert planned(layout, 2, None, ["broker-a"]) == "broker-c"
    assert planned(layout, 2, "broker-k", ["broker-a"]) == "broker-k"
    for name in ("broker-a", "broker-b", "broker-c.1", "../etc", "Broker"):
        with pytest.raises(InvalidInput, match="name"):
            planned(layout, 2, name, ["broker-a"])
