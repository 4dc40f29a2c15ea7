"""A drain's decisions: nothing is ended before nothing is left, and whatever interrupts it, it goes on."""

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


def begun(remains: DrainBacklog | None = EMPTY, permission: int | None = 4) -> DrainState:
    now = scene(remains, permission=permission)
    return replace(now, layout=now.layout.with_change(GROUP, {"verb": "drain"}))


def after(step: Step, now: DrainState, plan: DrainPlanner) -> DrainState:
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


def carried_out(wanted: DrainOptions, now: DrainState, most: int = 100) -> tuple[list[str], DrainState]:
    plan, told = DrainPlanner(GROUP, wanted), list[str]()
    while most and (step := plan.next(now)) is not None:
        if not isinstance(step, WaitStep):
            told.append(str(step))
            most -= 1
        now = after(step, now, plan)
    return told, now


def test_a_group_is_emptied_and_stays() -> None:
    told, now = carried_out(DrainOptions(), scene())
    assert told == ["saves: broker-b is being drained", "makes broker-b read only"]
    assert (now.layout.pending_changes, now.actors) == ({GROUP: {"verb": "drain"}}, ("broker-b.1", "broker-b"))


def test_an_empty_group_goes_replicas_first() -> None:
    told, now = carried_out(DrainOptions(remove=True), scene())
    assert told == [
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


def test_whatever_step_it_ends_at_the_same_call_goes_on() -> None:
    wanted = DrainOptions(remove=True)
    told, whole = carried_out(wanted, scene())
    for ends_after in range(len(told)):
        first, now = carried_out(wanted, scene(), ends_after)
        rest, last = carried_out(wanted, now)
        assert last == whole
        again = ["removes broker-b from all records"] if first[-1:] == ["removes broker-b from all records"] else []
        assert first + rest == told[:ends_after] + again + told[ends_after:]


def test_nothing_ends_while_something_is_left() -> None:
    plan = DrainPlanner(GROUP, DrainOptions(remove=True))
    assert plan.next(begun(BUSY)) == WaitStep("broker-b has 7 messages of t for group g")
    assert isinstance(plan.next(begun()), WaitStep)
    assert isinstance(plan.next(begun(None, None)), WaitStep), "a master that is away for a moment"
    for _ in range(2):
        assert plan.next(begun()) == WaitStep("broker-b seems to be empty")
    assert isinstance(plan.next(begun()), SaveLayout)


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
def test_what_is_left_in_words(remains: DrainBacklog, told: str) -> None:
    assert describe_pending(remains) == told


def test_a_group_that_nobody_runs_any_more_need_not_be_waited_for() -> None:
    assert describe_pending(BUSY, frozenset({"g"})) == ""
    two = DrainBacklog(unconsumed={("g", "t"): 7, ("h", "t"): 1}, unconsumed_messages=8)
    assert describe_pending(two, frozenset({"g"})) == "1 messages of t for group h"


def test_what_is_lent_to_others_is_waited_for_whoever_is_not() -> None:
    """One that is not acknowledged has to come again, to whom it was lent."""
    lent = DrainBacklog(lent=5, lent_to={"g": 2, "h": 3})
    assert describe_pending(lent, frozenset({"g"})) == "3 messages in flight"
    assert describe_pending(lent, frozenset({"g", "h"})) == ""
    assert describe_pending(DrainBacklog(lent=5), frozenset({"g"})) == "5 messages in flight", (
        "of a broker that does not say"
    )


def test_no_replica_of_a_group_that_goes_comes_back_with_the_next_start() -> None:
    """Nor one of which no actor is there now."""
    now = replace(scene(), actors=("broker-b",))
    told, after_all = carried_out(DrainOptions(remove=True), now)
    assert told[-1] == "saves: broker-b is removed"
    assert after_all.layout.names(2, 2) == ["broker-a", "broker-a.1"]
    bare = replace(scene(), layout=ClusterLayout({"broker-a": "h1"}, 2), actors=("broker-b",))
    assert carried_out(DrainOptions(remove=True), bare)[1].layout.names(2, 2) == ["broker-a", "broker-a.1"]


@pytest.mark.parametrize("stays", [DrainBacklog(homes=1), DrainBacklog(dead_letters={"g": 3})])
def test_what_stays_for_ever_goes_only_when_that_is_said(stays: DrainBacklog) -> None:
    for now in (scene(stays), begun(stays)):
        with pytest.raises(InvalidInput, match="--lose"):
            carried_out(DrainOptions(remove=True), now)
    assert carried_out(DrainOptions(), scene(stays))[0][-1] == "makes broker-b read only"
    assert carried_out(DrainOptions(remove=True, lose=True), scene(stays))[0][-1] == "saves: broker-b is removed"


def test_the_last_group_that_takes_messages_is_not_drained() -> None:
    with pytest.raises(InvalidInput, match="another broker group takes messages"):
        DrainPlanner(GROUP, DrainOptions()).next(scene(others=0))


def test_a_group_without_a_master_or_that_is_drained_takes_nothing_from_another_one() -> None:
    def group(name: str, *, has_master: bool = True) -> ObservedGroup:
        return ObservedGroup(name, {0: ObservedReplica(name, 0, 1 if has_master else None, is_master=has_master)})

    groups = {each.name: each for each in (group("broker-a"), group(GROUP), group("broker-c", has_master=False))}
    assert count_writable_groups(groups, ClusterLayout(), GROUP) == 1
    assert count_writable_groups(groups, ClusterLayout().with_change("broker-a", {"verb": "drain"}), GROUP) == 0
    assert count_writable_groups(groups, ClusterLayout().with_change("broker-a", {"verb": "move"}), GROUP) == 1
    assert count_writable_groups({name: groups[name] for name in (GROUP, "broker-c")}, ClusterLayout(), GROUP) == 0


def test_topics_that_no_other_group_has_keep_it_from_being_drained() -> None:
    """Nobody could send to them any more, and with the group they would be gone."""
    for wanted in (DrainOptions(), DrainOptions(remove=True)):
        with pytest.raises(InvalidInput, match="a, b, c and 1 more"):
            DrainPlanner(GROUP, wanted, ["a", "b", "c", "d"]).next(scene())
    for wanted, now in ((DrainOptions(lose=True), scene()), (DrainOptions(), begun())):
        assert DrainPlanner(GROUP, wanted, ["a"]).next(now) is not None


def test_a_group_in_which_something_else_is_under_way_is_refused() -> None:
    now = scene()
    now = replace(now, layout=now.layout.with_change(GROUP, {"verb": "move"}))
    with pytest.raises(InvalidInput, match="nothing else is under way"):
        DrainPlanner(GROUP, DrainOptions()).next(now)


def test_a_drain_is_taken_back_until_its_removal_has_begun() -> None:
    layout = begun().layout
    assert isinstance(next_cancel_step(GROUP, layout, None), WaitStep)
    assert next_cancel_step(GROUP, layout, 4) == SetPermission(GROUP, 6)
    last = next_cancel_step(GROUP, layout, 6)
    assert isinstance(last, SaveLayout)
    assert next_cancel_step(GROUP, last.layout, 6) is None
    with pytest.raises(InvalidInput, match="removal has not begun"):
        next_cancel_step(GROUP, layout.with_change(GROUP, {"verb": "drain", "going": True}), 4)
