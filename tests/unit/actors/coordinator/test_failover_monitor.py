"""Test when a group is created, its master deposed, and a new master elected."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

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
from tests.unit.actors.keeper.in_memory_keepers import group_with_master

STATE = group_with_master(1, 6, 3)
SYNC = ReplicationPolicy("sync", 2)


@pytest.fixture
def monitor(clock: FakeClock) -> FailoverMonitor:
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


def test_configured_group_is_created_without_replicas(clock: FakeClock) -> None:
    found = FailoverMonitor("g", clock, SYNC).next(None, {})
    assert found == UpdateRegister(GroupState(policy=SYNC), "is added to the register")
    assert isinstance(found, UpdateRegister)
    assert isinstance(FailoverMonitor("g", clock).next(None, {}), Idle)
    assert isinstance(FailoverMonitor("g", clock, SYNC).next(found.after, {}), Idle), (
        "the first replica comes by itself"
    )


def test_group_starts_at_epoch_1(monitor: FailoverMonitor) -> None:
    state = replace(STATE, master=None, epoch=0)
    step = monitor.next(state, {})
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.epoch) == (None, 1)
    assert monitor.next(step.after, {}) == FenceReplicas()


def test_policy_change_updates_only_policy_in_register(clock: FakeClock) -> None:
    step = FailoverMonitor("g", clock, SYNC).next(STATE, {1: status()})
    assert isinstance(step, UpdateRegister)
    assert step.after == replace(STATE, policy=SYNC)
    assert FailoverMonitor("g", clock, SYNC).next(step.after, {1: status()}) == Idle()


def test_serving_master_stays(monitor: FailoverMonitor, clock: FakeClock) -> None:
    for _ in range(20):
        assert monitor.next(STATE, {1: status()}) == Idle()
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
def test_master_is_deposed_after_silence_timeout(
    monitor: FailoverMonitor, clock: FakeClock, heard: dict[int, ReplicaStatus]
) -> None:
    assert monitor.next(STATE, {1: status()}) == Idle()
    clock.advance(SILENT_SECONDS - 0.1)
    assert isinstance(monitor.next(STATE, heard), Idle)
    clock.advance(0.2)
    step = monitor.next(STATE, heard)
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.epoch, step.after.in_sync) == (None, 7, STATE.in_sync)


def test_check_interval_shrinks_during_failover(monitor: FailoverMonitor, clock: FakeClock) -> None:
    monitor.next(STATE, {1: status()})
    assert monitor.check_interval == CHECK_SECONDS
    monitor.next(STATE, {})
    assert monitor.check_interval == FAST_CHECK_SECONDS
    clock.advance(STARTUP_SILENT_SECONDS)
    step = monitor.next(STATE, {})
    assert isinstance(step, UpdateRegister)
    assert monitor.next(step.after, {}) == FenceReplicas()
    assert isinstance(monitor.elect(step.after, {}), Idle)
    assert monitor.check_interval == FAST_CHECK_SECONDS
    clock.advance(STARTUP_SILENT_SECONDS)
    assert isinstance(monitor.elect(step.after, {}), Idle)
    assert monitor.check_interval == CHECK_SECONDS, "nobody may come for days"


def test_elected_master_gets_store_opening_time(monitor: FailoverMonitor, clock: FakeClock) -> None:
    opening = {1: status(serves=False, role="replica", epoch=5)}
    for _ in range(int(OPENING_SECONDS) - 1):
        assert isinstance(monitor.next(STATE, opening), Idle)
        clock.advance(1.0)
    clock.advance(1.1)
    assert isinstance(monitor.next(STATE, opening), UpdateRegister)


def test_opening_role_gets_store_opening_time(monitor: FailoverMonitor, clock: FakeClock) -> None:
    """Cover a process that answers and renews its lease while it opens its store."""
    opening = {1: status(serves=False, role="opening")}
    for _ in range(int(OPENING_SECONDS) - 1):
        assert isinstance(monitor.next(STATE, opening), Idle)
        clock.advance(1.0)
    clock.advance(1.1)
    step = monitor.next(STATE, opening)
    assert isinstance(step, UpdateRegister), "others in sync are tried"
    assert "has not begun to serve within 30 s" in step.why


def test_sole_in_sync_master_opens_store_without_time_limit(monitor: FailoverMonitor, clock: FakeClock) -> None:
    alone = replace(STATE, in_sync=frozenset({1}))
    for _ in range(100):
        assert isinstance(monitor.next(alone, {1: status(serves=False, role="opening")}), Idle)
        clock.advance(STARTUP_SILENT_SECONDS - 0.1)
    assert isinstance(monitor.next(alone, {1: status()}), Idle)


def test_master_dying_while_opening_store_is_deposed(monitor: FailoverMonitor, clock: FakeClock) -> None:
    alone = replace(STATE, in_sync=frozenset({1}))
    assert isinstance(monitor.next(alone, {1: status(serves=False, role="opening")}), Idle)
    clock.advance(STARTUP_SILENT_SECONDS - 0.1)
    assert isinstance(monitor.next(alone, {}), Idle)
    clock.advance(0.2)
    assert isinstance(monitor.next(alone, {}), UpdateRegister)


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
def test_master_unable_to_serve_gets_startup_timeout_only(
    monitor: FailoverMonitor, clock: FakeClock, heard: dict[int, ReplicaStatus]
) -> None:
    assert isinstance(monitor.next(STATE, heard), Idle)
    clock.advance(SILENT_SECONDS + 0.1)
    assert isinstance(monitor.next(STATE, heard), Idle), "a coordinator that has just started knows nothing yet"
    clock.advance(STARTUP_SILENT_SECONDS - SILENT_SECONDS)
    assert isinstance(monitor.next(STATE, heard), UpdateRegister)


def test_startup_timeout_doubles_until_master_serves(monitor: FailoverMonitor, clock: FakeClock) -> None:
    """Cover a busy machine, on which an elected replica stays silent for as long."""
    state, waited = STATE, []
    for _ in range(4):
        began = clock()
        while not isinstance(step := monitor.next(state, {}), UpdateRegister):
            clock.advance(0.5)
        waited.append(clock() - began)
        state = step.after.elected(1, frozenset({1}))
    assert waited == [STARTUP_SILENT_SECONDS * each for each in (1, 2, 4, 8)]
    monitor.next(state, {1: status(epoch=state.epoch)})
    clock.advance(SILENT_SECONDS)
    step = monitor.next(state, {})
    assert isinstance(step, UpdateRegister)
    state = step.after.elected(1, frozenset({1}))
    assert isinstance(monitor.next(state, {}), Idle)
    clock.advance(STARTUP_SILENT_SECONDS)
    assert isinstance(monitor.next(state, {}), UpdateRegister), "one has served meanwhile"


def test_elected_replica_that_failed_to_serve_is_retried_last(monitor: FailoverMonitor, clock: FakeClock) -> None:
    monitor.next(STATE, {})
    clock.advance(STARTUP_SILENT_SECONDS)
    step = monitor.next(STATE, {})
    assert isinstance(step, UpdateRegister)
    # Opening its store appended to its state, so that it has more than the other in-sync replicas.
    answers = {1: fenced(1, step.after, 120), 2: fenced(2, step.after), 3: fenced(3, step.after)}
    found = monitor.elect(step.after, answers)
    assert isinstance(found, UpdateRegister)
    assert (found.after.master, found.after.in_sync) == (2, {2, 3})
    clock.advance(STARTUP_SILENT_SECONDS)
    alone = replace(step.after, in_sync=frozenset({1}))
    found = monitor.elect(alone, answers)
    assert isinstance(found, UpdateRegister)
    assert found.after.master == 1, "there is nobody else"


def test_silence_timeout_restarts_with_each_master(monitor: FailoverMonitor, clock: FakeClock) -> None:
    monitor.next(STATE, {1: status()})
    clock.advance(SILENT_SECONDS + 0.1)
    other = replace(STATE, master=2, epoch=7)
    assert isinstance(monitor.next(other, {}), Idle)
    clock.advance(SILENT_SECONDS + 0.1)
    assert isinstance(monitor.next(other, {}), Idle)


def test_in_sync_replica_with_longest_log_becomes_master(monitor: FailoverMonitor) -> None:
    state = STATE.start_election()
    assert monitor.next(state, {}) == FenceReplicas()
    step = monitor.elect(state, {1: fenced(1, state), 2: fenced(2, state, 140), 3: fenced(3, state, 90)})
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.epoch, step.after.in_sync) == (2, 7, {2})


def test_election_waits_for_missing_in_sync_replicas(monitor: FailoverMonitor, clock: FakeClock) -> None:
    state = STATE.start_election()
    answers = {1: fenced(1, state), 3: fenced(3, state)}
    assert monitor.elect(state, answers) == Idle("waiting for replicas [2]")
    clock.advance(GATHER_SECONDS)
    step = monitor.elect(state, answers)
    assert isinstance(step, UpdateRegister)
    assert step.after.in_sync == {1, 3}


def test_election_does_not_wait_for_deposed_master(monitor: FailoverMonitor, clock: FakeClock) -> None:
    monitor.next(STATE, {1: status()})
    clock.advance(SILENT_SECONDS)
    assert isinstance(monitor.next(STATE, {}), UpdateRegister)
    state = STATE.start_election()
    assert isinstance(monitor.elect(state, {2: fenced(2, state), 3: fenced(3, state)}), UpdateRegister)


def test_election_without_in_sync_replica_reports_trouble(monitor: FailoverMonitor, clock: FakeClock) -> None:
    state = replace(STATE, in_sync=frozenset({1, 2})).start_election()
    monitor.elect(state, {})
    clock.advance(GATHER_SECONDS)
    step = monitor.elect(state, {3: fenced(3, state)})
    assert isinstance(step, Idle)
    assert "[1, 2]" in step.trouble


def test_election_adopts_epoch_of_fenced_replicas(monitor: FailoverMonitor) -> None:
    """Guard against electing in an epoch below the one that replicas are fenced to.

    A replica fenced to a later epoch answers no election of this one, and the group kept no master.
    """
    state = replace(STATE, master=None, epoch=7)
    step = monitor.elect(state, {1: fenced(1, state)}, {2: status(2, epoch=6, fenced=8)})
    assert isinstance(step, UpdateRegister)
    assert step.after == replace(state, epoch=8)
    assert monitor.elect(state, {1: fenced(1, state)}, {2: status(2, epoch=6, fenced=8, identity="another")}) != step


@pytest.mark.parametrize("more", [{"epoch": 7}, {"epoch": 8, "fenced": 8}, {"epoch": 6, "fenced": 9}])
def test_stale_register_elects_longest_log_of_all_replicas(monitor: FailoverMonitor, more: dict[str, int]) -> None:
    """Cover an etcd restored from a backup.

    The in-sync set of the old register may lack messages that were acknowledged since.
    """
    state = replace(STATE, master=None, epoch=7, in_sync=frozenset({1}))
    knows = {2: status(2, **{"serves": False, "epoch": 6, "end": (200, 0), **more})}  # type: ignore[arg-type]
    waits = monitor.elect(state, {1: fenced(1, state)}, knows)
    assert isinstance(waits, Idle)
    assert "missing: [3]" in waits.trouble
    by_hand = later_epoch(state, {1: fenced(1, state)}, knows, unclean=True)
    step = monitor.elect(state, {1: fenced(1, state), 3: fenced(3, state)}, knows)
    assert step == by_hand
    assert isinstance(step, UpdateRegister)
    assert (step.after.master, step.after.in_sync) == (None, {2})
    assert step.after.epoch == max(8, more.get("epoch", 0) + 1, more.get("fenced", 0))
    assert later_epoch(step.after, {}, knows) is None


def test_stale_register_allows_each_replica_with_longest_log(monitor: FailoverMonitor) -> None:
    """Guard against waiting forever for the one replica that was chosen.

    The chosen replica may have restarted since, and its claim may be refused.
    """
    state = replace(STATE, master=None, epoch=7, in_sync=frozenset({3}))
    heard = {number: status(number, serves=False, end=(200, 5)) for number in (1, 2)}
    heard |= {1: dataclasses.replace(heard[1], role="refused", nonce="later"), 3: status(3, serves=False, epoch=7)}
    heard |= {number: dataclasses.replace(heard[number], epoch=7) for number in (1, 2)}
    step = monitor.elect(state, {}, heard)
    assert isinstance(step, UpdateRegister)
    assert (step.after.epoch, step.after.in_sync, step.after.loss_epoch) == (8, {1, 2}, 8)
    answers = {number: fenced(number, step.after, 200, epoch=7) for number in (2, 3)}
    monitor.elect(step.after, answers)
    monitor._electing_since -= GATHER_SECONDS
    found = monitor.elect(step.after, answers)
    assert isinstance(found, UpdateRegister)
    assert (found.after.master, found.after.in_sync) == (2, {2})


def test_stale_register_blocks_election_during_lease(monitor: FailoverMonitor) -> None:
    """Cover replicas that are not fenced yet.

    The log that is longest now may not be the longest one at the election.
    """
    state = replace(STATE, master=None, epoch=7, in_sync=frozenset({1}))
    heard = {1: status(1, epoch=8, end=(100, 0)), 2: status(2, serves=False, epoch=8, end=(100, 0))}
    waits = monitor.elect(state, {3: fenced(3, state)}, heard)
    assert isinstance(waits, Idle)
    assert "[1] still have a lease" in waits.trouble
    heard[1] = dataclasses.replace(heard[1], serves=False, end=(200, 0))
    step = monitor.elect(state, {3: fenced(3, state)}, heard)
    assert isinstance(step, UpdateRegister)
    assert step.after.in_sync == {1}


def test_master_steps_down_for_replica_fenced_to_later_epoch(monitor: FailoverMonitor, clock: FakeClock) -> None:
    """Cover a replica that an aborted election fenced.

    The replica followed no master until the current one died, and an operator could not repair it.
    """
    alone = replace(STATE, in_sync=frozenset({1, 2}))
    assert monitor.asked(alone).keys() == {1}
    clock.advance(FULL_CHECK_SECONDS)
    assert monitor.asked(STATE).keys() == {1}, "all are in sync"
    assert monitor.asked(alone).keys() == {1, 2, 3}
    assert monitor.asked(alone).keys() == {1}, "one that is not there would hold up each turn"
    assert monitor.asked(alone.start_election()) == {}
    at_rest = [
        {1: status(), 3: status(3, fenced=6)},
        {1: status(), 3: status(3, fenced=7, nonce="another")},
        {1: status(), 3: status(3, fenced=7, identity="another")},
        {1: status(), 2: status(2, fenced=7)},
        {1: status(), 3: status(3, fenced=8)},
    ]
    for heard in at_rest:
        assert monitor.next(alone, heard) == Idle()
    assert isinstance(monitor.next(alone, {1: status(), 3: status(3, fenced=7)}), StepDown)
    all_there = {1: status(), 2: status(2), 3: status(3, fenced=8)}
    assert isinstance(monitor.next(alone, all_there), StepDown), "nobody is missing in that election"
    begun = all_there | {3: status(3, fenced=8, epoch=8)}
    assert monitor.next(alone, begun) == Idle(), "what this master has acknowledged would be cut"
    new = FailoverMonitor("g", clock)
    assert new.next(alone, all_there | {1: status(serves=False, role="opening")}) == Idle(
        "replica 1 is about to become master"
    )
