"""Test the decisions about a broker's role: who follows whom, who leads, and who steps down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from raymq.actors.broker.replication.replica_role import (
    AnnounceFollower,
    ApplyRegistered,
    BecomeFollower,
    BeginLeadership,
    Connect,
    Disconnect,
    EndLeadership,
    HandOver,
    Instruction,
    LeaveRoutes,
    MarkComplete,
    ReleaseLease,
    ReopenStore,
    ReplicaRole,
    Role,
    Serve,
    StoreFence,
)
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from tests.unit.actors.clock import FakeClock

OWN = 2


def group(master: int | None, epoch: int, *, in_sync: tuple[int, ...] = (1, 2), nonce: str = "n2") -> GroupState:
    records = {1: ReplicaRecord("i1", "host:1", "n1"), 2: ReplicaRecord("i2", "host:2", nonce)}
    return GroupState(master=master, epoch=epoch, in_sync=frozenset(in_sync), replicas=records)


def read(
    role: ReplicaRole, state: GroupState, log_epoch: int | None = 0, *, is_following: bool = False
) -> list[Instruction]:
    return role.register_read(state, log_epoch=log_epoch, is_following=is_following)


def candidate(fenced: int = 0, clock: FakeClock | None = None) -> ReplicaRole:
    return ReplicaRole(OWN, "n2", fenced, clock or FakeClock(0.0))


def follower(fenced: int = 0, clock: FakeClock | None = None) -> ReplicaRole:
    role = candidate(fenced, clock)
    role.claimed()
    return role


def connected(epoch: int = 3) -> ReplicaRole:
    role = follower()
    assert role.connected(epoch) == []
    return role


def promoting(epoch: int = 3) -> ReplicaRole:
    role = follower()
    assert read(role, group(OWN, epoch)) == [BeginLeadership(epoch)]
    return role


def leader(epoch: int = 3) -> ReplicaRole:
    role = promoting(epoch)
    assert role.lease_acquired(epoch) == [Serve(epoch)]
    assert role.serving(epoch) == []
    return role


def stepping_down(epoch: int = 3) -> ReplicaRole:
    role = leader(epoch)
    assert role.disk_failing() == [HandOver(epoch)]
    return role


def refused() -> ReplicaRole:
    role = candidate()
    role.claim_refused("a copy")
    return role


def stopped() -> ReplicaRole:
    role = follower()
    role.stop()
    return role


@pytest.mark.parametrize(
    ("make", "state", "expected", "becomes"),
    [
        (candidate, group(1, 3), [], Role.CANDIDATE),
        (refused, group(1, 3), [], Role.REFUSED),
        (stopped, group(OWN, 3), [], Role.STOPPED),
        (follower, group(None, 3), [AnnounceFollower(3)], Role.FOLLOWER),
        (follower, group(1, 3), [AnnounceFollower(3), Connect(1, 3)], Role.FOLLOWER),
        (connected, group(1, 3), [AnnounceFollower(3)], Role.FOLLOWER),
        (connected, group(1, 4), [AnnounceFollower(4), Disconnect()], Role.FOLLOWER),
        (connected, group(OWN, 4), [Disconnect()], Role.FOLLOWER),
        (follower, group(OWN, 3), [BeginLeadership(3)], Role.PROMOTING),
        (leader, group(OWN, 3), [ApplyRegistered()], Role.LEADER),
        (leader, group(OWN, 2), [ApplyRegistered()], Role.LEADER),
        (leader, group(1, 2), [], Role.LEADER),
        (leader, group(None, 4), [EndLeadership(3)], Role.LEADER),
        (leader, group(1, 4), [EndLeadership(3)], Role.LEADER),
        (leader, group(OWN, 4), [EndLeadership(3)], Role.LEADER),
        (stepping_down, group(OWN, 3), [ApplyRegistered()], Role.STEPPING_DOWN),
        (stepping_down, group(1, 4), [EndLeadership(3)], Role.STEPPING_DOWN),
        (follower, group(1, 3, nonce="another"), [LeaveRoutes()], Role.REFUSED),
        (connected, group(1, 3, nonce="another"), [Disconnect(), LeaveRoutes()], Role.REFUSED),
        (leader, group(OWN, 3, nonce="another"), [EndLeadership(3), LeaveRoutes()], Role.REFUSED),
    ],
)
def test_registered_value_gives_the_role(
    make: Callable[[], ReplicaRole], state: GroupState, expected: list[Instruction], becomes: Role
) -> None:
    role = make()
    assert read(role, state) == expected
    assert role.role is becomes


def test_closed_store_is_opened_before_any_role() -> None:
    role = follower()
    assert read(role, group(OWN, 3), None) == [BecomeFollower()]
    assert role.role is Role.FOLLOWER


@pytest.mark.parametrize(("in_sync", "marks"), [((1, 2), True), ((1,), False)])
def test_in_sync_follower_has_lost_nothing(in_sync: tuple[int, ...], *, marks: bool) -> None:
    instructions = read(connected(), group(1, 3, in_sync=in_sync), is_following=True)
    assert (MarkComplete() in instructions) is marks


@pytest.mark.parametrize(
    ("log_epoch", "promotes"), [(2, True), pytest.param(3, False, id="of a former process"), (4, False)]
)
def test_epoch_in_the_log_is_not_begun_again(log_epoch: int, *, promotes: bool) -> None:
    role = follower()
    assert bool(read(role, group(OWN, 3), log_epoch)) is promotes
    assert promotes or "began before this process started" in role.trouble


def test_failed_promotion_is_repeated_by_the_only_in_sync_replica() -> None:
    role = promoting()
    assert role.promotion_failed(3, has_others=False) == [BecomeFollower()]
    assert read(role, group(OWN, 3), 3) == [BeginLeadership(3)]


def test_failed_promotion_leaves_the_epoch_to_others() -> None:
    role = promoting()
    assert role.promotion_failed(3, has_others=True) == [ReleaseLease(3), BecomeFollower()]
    assert read(role, group(OWN, 3), 3) == []
    assert "another master must be elected" in role.trouble
    assert read(role, group(OWN, 4), 3) == [BeginLeadership(4)]


def test_leader_hands_over_and_never_leads_in_that_epoch_again() -> None:
    role = stepping_down()
    assert role.disk_failing() == []
    assert role.handed_over(3) == [ReleaseLease(3), EndLeadership(3)]
    assert role.stepped_down(3) == [BecomeFollower()]
    assert role.role is Role.FOLLOWER
    assert read(role, group(OWN, 3), 3) == []


def test_lost_lease_ends_the_leadership() -> None:
    role = leader()
    assert role.leadership_ended(2) == []
    assert role.leadership_ended(3) == [EndLeadership(3)]
    assert role.stepped_down(3) == [BecomeFollower()]


def test_reports_of_former_epochs_have_no_effect() -> None:
    role = leader()
    assert role.lease_acquired(2) == role.handed_over(2) == role.promotion_failed(2, has_others=True) == []
    assert role.role is Role.LEADER


def test_fence_hands_over_a_leader_of_an_earlier_epoch() -> None:
    role = leader()
    assert role.fence(3) == [StoreFence(3)]
    assert role.fence(4) == [HandOver(3)]
    assert role.fence(4) == []
    assert role.role is Role.STEPPING_DOWN


def test_fence_during_a_promotion_ends_it() -> None:
    role = promoting()
    assert role.fence(4) == [HandOver(3)]
    assert role.lease_acquired(3) == []
    assert role.promotion_failed(3, has_others=False) == [ReleaseLease(3), BecomeFollower()]
    assert role.handed_over(3) == []
    assert read(role, group(OWN, 3), 3) == []


def test_fenced_follower_leaves_its_master_and_connects_to_none_before() -> None:
    role = connected()
    assert role.fence(4) == [StoreFence(4), Disconnect()]
    assert role.disconnected(is_broken=False) == []
    assert read(role, group(1, 3)) == [AnnounceFollower(3)]
    assert role.connected(3) == [Disconnect()], "the connection was being made"
    with pytest.raises(InvalidInput):
        role.fence(3)


@pytest.mark.parametrize("make", [candidate, refused, stopped])
def test_fence_needs_a_registered_replica(make: Callable[[], ReplicaRole]) -> None:
    with pytest.raises(BrokerUnavailable):
        make().fence(4)


def test_broken_store_is_reopened_and_delays_the_next_connection() -> None:
    clock = FakeClock(0.0)
    role = follower(clock=clock)
    role.connected(3)
    assert role.connection_lost() == [Disconnect()]
    assert role.disconnected(is_broken=True) == [ReopenStore()]
    assert read(role, group(1, 3)) == [AnnounceFollower(3)]
    clock.advance(10.0)
    assert Connect(1, 3) in read(role, group(1, 3))


@pytest.mark.parametrize("make", [promoting, leader, stepping_down])
def test_stop_releases_the_lease_of_a_leader(make: Callable[[], ReplicaRole]) -> None:
    role = make()
    assert role.stop() == [EndLeadership(3, is_stop=True), LeaveRoutes()]
    assert role.serving(3) == role.stepped_down(3) == role.handed_over(3) == []
    assert role.role is Role.STOPPED


RARELY = st.sampled_from((False, False, False, True))


class RoleMachine(RuleBasedStateMachine):
    """Drive one replica through any events; instructions are carried out late, early or without success."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(0.0)
        self.role = ReplicaRole(OWN, "n2", 0, self.clock)
        self.state = group(None, 0)
        self.has_stream, self.log_epoch = True, 0
        self.connection: int | None = None
        self.lease: int | None = None
        self.serving: int | None = None
        #: Epochs in which the register has named this replica.
        self.elected: set[int] = set()
        #: Epochs whose lease was released, and the fence that was answered.
        self.left: set[int] = set()
        self.answered = 0
        self.running: list[int] = []
        #: Instructions whose result comes later: until then the register is not read.
        self.pending: list[Instruction] = []
        self.carry_out(self.role.claimed())

    def carry_out(self, instructions: list[Instruction], *, fails: bool = False, is_late: bool = False) -> None:
        for instruction in instructions:
            if is_late and isinstance(instruction, Connect | BeginLeadership | Serve):
                self.pending.append(instruction)
            else:
                self.carry_out(self.result_of(instruction, fails=fails), fails=fails, is_late=is_late)

    @precondition(lambda self: self.pending)
    @rule(fails=RARELY, is_late=st.booleans())
    def finish_late(self, *, fails: bool, is_late: bool) -> None:
        instruction = self.pending.pop()
        self.carry_out(self.result_of(instruction, fails=fails), fails=fails, is_late=is_late)

    def result_of(self, instruction: Instruction, *, fails: bool) -> list[Instruction]:
        role = self.role
        match instruction:
            case BecomeFollower() | ReopenStore():
                self.has_stream = not fails
            case Connect(_, epoch):
                assert self.has_stream
                assert self.connection is None
                if fails:
                    return role.connect_failed("away")
                self.connection = epoch
                return role.connected(epoch)
            case Disconnect():
                self.connection = None
                return role.disconnected(is_broken=fails)
            case BeginLeadership(epoch):
                assert epoch not in self.left
                assert self.connection is None
                self.log_epoch = max(self.log_epoch, epoch)
                if fails:
                    return self.failed(epoch)
                self.lease = epoch
                return role.lease_acquired(epoch)
            case Serve(epoch):
                assert self.lease == epoch
                assert epoch in self.elected
                assert epoch not in self.left
                self.has_stream = False
                if fails:
                    return self.failed(epoch)
                self.serving = epoch
                return role.serving(epoch)
            case HandOver(epoch):
                self.running.append(epoch)
            case ReleaseLease(epoch):
                self.left.add(epoch)
                self.lease = None
            case EndLeadership(epoch):
                self.serving = self.lease = None
                self.has_stream = False
                return role.stepped_down(epoch)
        return []

    def failed(self, epoch: int) -> list[Instruction]:
        self.lease, self.has_stream = None, False
        return self.role.promotion_failed(epoch, has_others=bool(self.state.in_sync - {OWN}))

    @rule(master=st.sampled_from((OWN, OWN, 1, None)), steps=st.integers(0, 2), in_sync=st.sampled_from(((2,), (1, 2))))
    def change_register(self, master: int | None, steps: int, in_sync: tuple[int, ...]) -> None:
        steps = steps if master == self.state.master else max(1, steps)  # one epoch has one master
        members = frozenset(in_sync) | ({master} if master is not None else set())
        self.state = replace(group(master, self.state.epoch + steps), in_sync=members)
        if master == OWN:
            self.elected.add(self.state.epoch)

    @precondition(lambda self: not self.pending)
    @rule(is_following=st.booleans(), fails=RARELY, is_late=st.booleans())
    def read_register(self, *, is_following: bool, fails: bool, is_late: bool) -> None:
        while not self.pending:
            log_epoch = self.log_epoch if self.has_stream else None
            is_following &= self.connection is not None
            found = self.role.register_read(self.state, log_epoch=log_epoch, is_following=is_following)
            self.carry_out(found, fails=fails, is_late=is_late)
            if fails or not {BecomeFollower(), Disconnect()} & set(found):
                break

    @rule(ahead=st.sampled_from((-1, 0, 0, 1)))
    def fence(self, ahead: int) -> None:
        epoch = max(1, self.state.epoch + ahead)
        try:
            instructions = self.role.fence(epoch)
        except (InvalidInput, BrokerUnavailable):
            return
        if StoreFence(epoch) in instructions and not self.pending:
            self.carry_out(instructions)
            self.answered = max(self.answered, epoch)
        elif HandOver(self.role.epoch) in instructions:
            self.carry_out(instructions)

    @precondition(lambda self: self.running and not self.pending)
    @rule()
    def finish_hand_over(self) -> None:
        self.carry_out(self.role.handed_over(self.running.pop()))

    @precondition(lambda self: not self.pending)
    @rule()
    def lose_lease(self) -> None:
        self.lease = None
        self.carry_out(self.role.leadership_ended(self.role.epoch))

    @precondition(lambda self: not self.pending)
    @rule(is_broken=RARELY, seconds=st.sampled_from((0.0, 10.0)))
    def lose_connection(self, *, is_broken: bool, seconds: float) -> None:
        self.carry_out(self.role.connection_lost(), fails=is_broken)
        self.clock.advance(seconds)

    @precondition(lambda self: self.role.role is Role.LEADER)
    @rule(finishes=st.booleans())
    def fail_disk(self, *, finishes: bool) -> None:
        self.carry_out(self.role.disk_failing())
        if finishes and not self.pending:
            self.finish_hand_over()

    @precondition(lambda self: self.clock.now > 60 and not self.pending)
    @rule()
    def stop(self) -> None:
        self.carry_out(self.role.stop())

    @invariant()
    def serves_only_with_a_lease_of_its_epoch(self) -> None:
        if self.serving is not None:
            assert self.lease == self.serving == self.role.epoch
            assert self.role.role in {Role.LEADER, Role.STEPPING_DOWN}
            assert self.serving not in self.left

    @invariant()
    def takes_new_messages_only_above_its_fence(self) -> None:
        if self.role.role is Role.LEADER:
            assert self.role.epoch >= self.role.fenced >= self.answered

    @invariant()
    def follows_no_master_below_its_fence(self) -> None:
        if self.connection is not None:
            assert self.connection >= self.role.fenced
            assert self.serving is None

    @invariant()
    def does_nothing_outside_its_group(self) -> None:
        if self.role.role in {Role.CANDIDATE, Role.REFUSED, Role.STOPPED}:
            assert self.serving is None
            assert self.connection is None


RoleMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_any_sequence_of_events_keeps_the_invariants = RoleMachine.TestCase
