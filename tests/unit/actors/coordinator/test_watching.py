"""What a group needs next: when it is founded, when its master is taken away, and whom it is given."""

from __future__ import annotations

import dataclasses

import pytest

from raymq.actors.broker.replication.election import FencedState
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.coordinator.failover_monitor import (
    CHECK_SECONDS,
    FAST_CHECK_SECONDS,
    FULL_CHECK_SECONDS,
    GATHER_SECONDS,
    OPENING_SECONDS,
    SILENT_SECONDS,
    STARTUP_SILENT_SECONDS,
    FailoverMonitor,
    FenceReplicas,
    Idle,
    StepDown,
    UpdateRegister,
    later_epoch,
)
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.wire.commands.replication_commands import ReplicaStatus
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.keeper.keepers_at_hand import mastered

STATE = mastered(1, 6, 3)
SYNC = ReplicationPolicy("sync", 2)


@pytest.fixture
def watch(clock: FakeClock) -> FailoverMonitor:
    return FailoverMonitor("g", clock)


def status(number: int = 1, *, serves: bool = True, epoch: int = 6, **more: object) -> ReplicaStatus:
    nothing = (0, 0)
    made = ReplicaStatus(
        number, "master", f"dir-{number}", f"n{number}", 1, serves, 0, epoch, 1, 6, "h:1", "h:2",
        nothing, nothing, nothing, (1,), 1, reaches_keepers=True,
    )  # fmt: skip
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def fenced(number: int, state: GroupState, offset: int = 100, **more: object) -> FencedState:
    made = FencedState(number, f"dir-{number}", f"n{number}", state.epoch, 6, StreamPosition(offset, 0))
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def test_a_group_that_is_to_be_there_is_founded_without_replicas(clock: FakeClock) -> None:
    found = FailoverMonitor("g", clock, SYNC).next(None, {})
    assert found == UpdateRegister(GroupState(policy=SYNC), "is added to the register")
    assert isinstance(found, UpdateRegister)
    found.after.validate()
    assert isinstance(FailoverMonitor("g", clock).next(None, {}), Idle)
    assert isinstance(FailoverMonitor("g", clock, SYNC).next(found.after, {}), Idle), (
        "the first replica comes by itself"
    )


def test_a_group_begins_with_epoch_1(watch: FailoverMonitor) -> None:
    state = dataclasses.replace(STATE, master=None, epoch=0)
    step = watch.next(state, {})
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.epoch) == (None, 1)
    assert watch.next(step.after, {}) == FenceReplicas()


def test_another_promise_is_put_into_the_register_and_changes_nothing_else(clock: FakeClock) -> None:
    step = FailoverMonitor("g", clock, SYNC).next(STATE, {1: status()})
    assert isinstance(step, UpdateRegister)
    assert step.after == dataclasses.replace(STATE, policy=SYNC)
    assert FailoverMonitor("g", clock, SYNC).next(step.after, {1: status()}) == Idle()


def test_a_master_that_serves_stays(watch: FailoverMonitor, clock: FakeClock) -> None:
    for _ in range(20):
        assert watch.next(STATE, {1: status()}) == Idle()
        clock.advance(1.0)


@pytest.mark.parametrize(
    "heard",
    [
        {},
        {1: status(serves=False)},
        {1: status(nonce="another process")},
        {1: status(number=2)},
        {1: status(epoch=5)},
        {2: status(number=2)},
    ],
    ids=["nothing", "it does not serve", "another process", "another replica", "a former epoch", "others only"],
)
def test_a_master_that_does_not_serve_is_taken_away_after_a_while(
    watch: FailoverMonitor, clock: FakeClock, heard: dict[int, ReplicaStatus]
) -> None:
    assert watch.next(STATE, {1: status()}) == Idle()
    clock.advance(SILENT_SECONDS - 0.1)
    assert isinstance(watch.next(STATE, heard), Idle)
    clock.advance(0.2)
    step = watch.next(STATE, heard)
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.epoch, step.after.in_sync) == (None, 7, STATE.in_sync)


def test_a_group_is_looked_at_more_often_while_its_master_changes(watch: FailoverMonitor, clock: FakeClock) -> None:
    watch.next(STATE, {1: status()})
    assert watch.check_interval == CHECK_SECONDS
    watch.next(STATE, {})
    assert watch.check_interval == FAST_CHECK_SECONDS
    clock.advance(STARTUP_SILENT_SECONDS)
    step = watch.next(STATE, {})
    assert isinstance(step, UpdateRegister)
    assert watch.next(step.after, {}) == FenceReplicas()
    assert isinstance(watch.elect(step.after, {}), Idle)
    assert watch.check_interval == FAST_CHECK_SECONDS
    clock.advance(STARTUP_SILENT_SECONDS)
    assert isinstance(watch.elect(step.after, {}), Idle)
    assert watch.check_interval == CHECK_SECONDS, "nobody may come for days"


def test_one_that_was_just_elected_has_time_to_open_its_store(watch: FailoverMonitor, clock: FakeClock) -> None:
    opening = {1: status(serves=False, role="replica", epoch=5)}
    for _ in range(int(OPENING_SECONDS) - 1):
        assert isinstance(watch.next(STATE, opening), Idle)
        clock.advance(1.0)
    clock.advance(1.1)
    assert isinstance(watch.next(STATE, opening), UpdateRegister)


def test_one_that_says_that_it_opens_its_store_has_as_much(watch: FailoverMonitor, clock: FakeClock) -> None:
    """Its process answers and renews its lease meanwhile."""
    opening = {1: status(serves=False, role="opening")}
    for _ in range(int(OPENING_SECONDS) - 1):
        assert isinstance(watch.next(STATE, opening), Idle)
        clock.advance(1.0)
    clock.advance(1.1)
    step = watch.next(STATE, opening)
    assert isinstance(step, UpdateRegister), "others in sync are tried"
    assert "has not begun to serve within 30 s" in step.why


def test_where_nobody_else_is_in_sync_it_has_all_the_time_that_it_needs(
    watch: FailoverMonitor, clock: FakeClock
) -> None:
    alone = dataclasses.replace(STATE, in_sync=frozenset({1}))
    for _ in range(100):
        assert isinstance(watch.next(alone, {1: status(serves=False, role="opening")}), Idle)
        clock.advance(STARTUP_SILENT_SECONDS - 0.1)
    assert isinstance(watch.next(alone, {1: status()}), Idle)


def test_one_that_dies_while_it_opens_its_store_is_taken_for_gone(watch: FailoverMonitor, clock: FakeClock) -> None:
    alone = dataclasses.replace(STATE, in_sync=frozenset({1}))
    assert isinstance(watch.next(alone, {1: status(serves=False, role="opening")}), Idle)
    clock.advance(STARTUP_SILENT_SECONDS - 0.1)
    assert isinstance(watch.next(alone, {}), Idle)
    clock.advance(0.2)
    assert isinstance(watch.next(alone, {}), UpdateRegister)


@pytest.mark.parametrize(
    "heard",
    [
        {},
        {1: status(serves=False, role="refused", epoch=5)},
        {1: status(serves=False, epoch=5, reaches_keepers=False)},
        {1: status(serves=False, epoch=5, fenced=7)},
        {1: status(serves=False, epoch=6)},
        {1: status(serves=False, role="opening", reaches_keepers=False)},
        {1: status(serves=False, role="opening", nonce="another process")},
    ],
    ids=[
        "nothing",
        "it is refused",
        "it reaches no keeper",
        "it is sealed to a later epoch",
        "it has begun its epoch and left",
        "it opens its store without a lease",
        "another process opens it",
    ],
)
def test_one_that_will_not_come_to_serve_has_less(
    watch: FailoverMonitor, clock: FakeClock, heard: dict[int, ReplicaStatus]
) -> None:
    assert isinstance(watch.next(STATE, heard), Idle)
    clock.advance(SILENT_SECONDS + 0.1)
    assert isinstance(watch.next(STATE, heard), Idle), "a coordinator that has just started knows nothing yet"
    clock.advance(STARTUP_SILENT_SECONDS - SILENT_SECONDS)
    assert isinstance(watch.next(STATE, heard), UpdateRegister)


def test_patience_doubles_until_somebody_comes_to_serve(watch: FailoverMonitor, clock: FakeClock) -> None:
    """A machine may have so much to do that nobody hears of the one that was elected for as long."""
    state, waited = STATE, []
    for _ in range(4):
        began = clock()
        while not isinstance(step := watch.next(state, {}), UpdateRegister):
            clock.advance(0.5)
        waited.append(clock() - began)
        state = step.after.elected(1, frozenset({1}))
    assert waited == [STARTUP_SILENT_SECONDS * each for each in (1, 2, 4, 8)]
    watch.next(state, {1: status(epoch=state.epoch)})
    clock.advance(SILENT_SECONDS)
    step = watch.next(state, {})
    assert isinstance(step, UpdateRegister)
    state = step.after.elected(1, frozenset({1}))
    assert isinstance(watch.next(state, {}), Idle)
    clock.advance(STARTUP_SILENT_SECONDS)
    assert isinstance(watch.next(state, {}), UpdateRegister), "one has served meanwhile"


def test_who_was_elected_and_did_not_come_to_serve_is_not_tried_again_before_others(
    watch: FailoverMonitor, clock: FakeClock
) -> None:
    watch.next(STATE, {})
    clock.advance(STARTUP_SILENT_SECONDS)
    step = watch.next(STATE, {})
    assert isinstance(step, UpdateRegister)
    # Opening its store has changed its state: it has more than those that are in sync with it.
    answers = {1: fenced(1, step.after, 120), 2: fenced(2, step.after), 3: fenced(3, step.after)}
    found = watch.elect(step.after, answers)
    assert isinstance(found, UpdateRegister)
    assert (found.after.master, found.after.in_sync) == (2, {2, 3})
    clock.advance(STARTUP_SILENT_SECONDS)
    alone = dataclasses.replace(step.after, in_sync=frozenset({1}))
    found = watch.elect(alone, answers)
    assert isinstance(found, UpdateRegister)
    assert found.after.master == 1, "there is nobody else"


def test_each_master_is_watched_from_its_own_beginning(watch: FailoverMonitor, clock: FakeClock) -> None:
    watch.next(STATE, {1: status()})
    clock.advance(SILENT_SECONDS + 0.1)
    other = dataclasses.replace(STATE, master=2, epoch=7)
    assert isinstance(watch.next(other, {}), Idle)
    clock.advance(SILENT_SECONDS + 0.1)
    assert isinstance(watch.next(other, {}), Idle)


def test_the_longest_log_of_those_in_sync_becomes_master(watch: FailoverMonitor) -> None:
    state = STATE.start_election()
    assert watch.next(state, {}) == FenceReplicas()
    step = watch.elect(state, {1: fenced(1, state), 2: fenced(2, state, 140), 3: fenced(3, state, 90)})
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.epoch, step.after.in_sync) == (2, 7, {2})


def test_members_in_sync_that_may_be_there_are_waited_for(watch: FailoverMonitor, clock: FakeClock) -> None:
    state = STATE.start_election()
    answers = {1: fenced(1, state), 3: fenced(3, state)}
    assert watch.elect(state, answers) == Idle("waiting for replicas [2]")
    clock.advance(GATHER_SECONDS)
    step = watch.elect(state, answers)
    assert isinstance(step, UpdateRegister)
    assert step.after.in_sync == {1, 3}


def test_the_master_that_is_gone_is_not_waited_for(watch: FailoverMonitor, clock: FakeClock) -> None:
    watch.next(STATE, {1: status()})
    clock.advance(SILENT_SECONDS)
    assert isinstance(watch.next(STATE, {}), UpdateRegister)
    state = STATE.start_election()
    assert isinstance(watch.elect(state, {2: fenced(2, state), 3: fenced(3, state)}), UpdateRegister)


def test_without_anybody_in_sync_there_is_no_master_and_it_is_said_why(
    watch: FailoverMonitor, clock: FakeClock
) -> None:
    state = dataclasses.replace(STATE, in_sync=frozenset({1, 2})).start_election()
    watch.elect(state, {})
    clock.advance(GATHER_SECONDS)
    step = watch.elect(state, {3: fenced(3, state)})
    assert isinstance(step, Idle)
    assert "[1, 2]" in step.trouble


def test_an_election_is_of_the_epoch_to_which_replicas_are_sealed(watch: FailoverMonitor) -> None:
    """Who was sealed to the next one answers no election of this one: the group had no master any more."""
    state = dataclasses.replace(STATE, master=None, epoch=7)
    step = watch.elect(state, {1: fenced(1, state)}, {2: status(2, epoch=6, fenced=8)})
    assert isinstance(step, UpdateRegister)
    assert step.after == dataclasses.replace(state, epoch=8)
    assert watch.elect(state, {1: fenced(1, state)}, {2: status(2, epoch=6, fenced=8, identity="another")}) != step


@pytest.mark.parametrize("more", [{"epoch": 7}, {"epoch": 8, "fenced": 8}, {"epoch": 6, "fenced": 9}])
def test_with_a_register_that_is_older_than_its_replicas_the_longest_log_of_all_counts(
    watch: FailoverMonitor, more: dict[str, int]
) -> None:
    """Of an etcd that was restored: whom it has in sync may lack what was acknowledged since."""
    state = dataclasses.replace(STATE, master=None, epoch=7, in_sync=frozenset({1}))
    knows = {2: status(2, **{"serves": False, "epoch": 6, "end": (200, 0), **more})}  # type: ignore[arg-type]
    waits = watch.elect(state, {1: fenced(1, state)}, knows)
    assert isinstance(waits, Idle)
    assert "missing: [3]" in waits.trouble
    by_hand = later_epoch(state, {1: fenced(1, state)}, knows, unclean=True)
    step = watch.elect(state, {1: fenced(1, state), 3: fenced(3, state)}, knows)
    assert step == by_hand
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.in_sync) == (None, {2})
    assert step.after.epoch == max(8, more.get("epoch", 0) + 1, more.get("fenced", 0))
    step.after.validate()
    assert later_epoch(step.after, {}, knows) is None


def test_with_an_older_register_all_who_have_the_longest_log_may_be_elected(watch: FailoverMonitor) -> None:
    """The one that was taken may be refused, as it was started since: the group waited for it for good."""
    state = dataclasses.replace(STATE, master=None, epoch=7, in_sync=frozenset({3}))
    heard = {number: status(number, serves=False, end=(200, 5)) for number in (1, 2)}
    heard |= {1: dataclasses.replace(heard[1], role="refused", nonce="later"), 3: status(3, serves=False, epoch=7)}
    heard |= {number: dataclasses.replace(heard[number], epoch=7) for number in (1, 2)}
    step = watch.elect(state, {}, heard)
    assert isinstance(step, UpdateRegister)
    assert (step.after.epoch, step.after.in_sync, step.after.loss_epoch) == (8, {1, 2}, 8)
    answers = {number: fenced(number, step.after, 200, epoch=7) for number in (2, 3)}
    watch.elect(step.after, answers)
    watch._electing_since -= GATHER_SECONDS
    found = watch.elect(step.after, answers)
    assert isinstance(found, UpdateRegister)
    assert (found.after.master, found.after.in_sync) == (2, {2})


def test_with_an_older_register_nobody_is_elected_while_another_one_may_acknowledge(watch: FailoverMonitor) -> None:
    """Nobody is sealed yet: by the time of the election its log would not be the longest one any more."""
    state = dataclasses.replace(STATE, master=None, epoch=7, in_sync=frozenset({1}))
    heard = {1: status(1, epoch=8, end=(100, 0)), 2: status(2, serves=False, epoch=8, end=(100, 0))}
    waits = watch.elect(state, {3: fenced(3, state)}, heard)
    assert isinstance(waits, Idle)
    assert "[1] still have a lease" in waits.trouble
    heard[1] = dataclasses.replace(heard[1], serves=False, end=(200, 0))
    step = watch.elect(state, {3: fenced(3, state)}, heard)
    assert isinstance(step, UpdateRegister)
    assert step.after.in_sync == {1}


def test_a_master_hands_over_where_a_replica_is_sealed_to_a_later_epoch(
    watch: FailoverMonitor, clock: FakeClock
) -> None:
    """Of an election that never was: it followed nobody, until the master died, and an operator could do nothing."""
    alone = dataclasses.replace(STATE, in_sync=frozenset({1, 2}))
    assert watch.asked(alone).keys() == {1}
    clock.advance(FULL_CHECK_SECONDS)
    assert watch.asked(STATE).keys() == {1}, "all are in sync"
    assert watch.asked(alone).keys() == {1, 2, 3}
    assert watch.asked(alone).keys() == {1}, "one that is not there would hold up each turn"
    assert watch.asked(alone.start_election()) == {}
    at_rest = [
        {1: status(), 3: status(3, fenced=6)},
        {1: status(), 3: status(3, fenced=7, nonce="another")},
        {1: status(), 3: status(3, fenced=7, identity="another")},
        {1: status(), 2: status(2, fenced=7)},
        {1: status(), 3: status(3, fenced=8)},
    ]
    for heard in at_rest:
        assert watch.next(alone, heard) == Idle()
    assert isinstance(watch.next(alone, {1: status(), 3: status(3, fenced=7)}), StepDown)
    all_there = {1: status(), 2: status(2), 3: status(3, fenced=8)}
    assert isinstance(watch.next(alone, all_there), StepDown), "nobody is missing in that election"
    begun = all_there | {3: status(3, fenced=8, epoch=8)}
    assert watch.next(alone, begun) == Idle(), "what this master has acknowledged would be cut"
    new = FailoverMonitor("g", clock)
    assert new.next(alone, all_there | {1: status(serves=False, role="opening")}) == Idle(
        "replica 1 is about to become master"
    )
