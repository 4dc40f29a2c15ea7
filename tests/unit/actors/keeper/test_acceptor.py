"""Test what one keeper promises, accepts, refuses and remembers."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from raymq.actors.keeper.acceptor import Acceptor
from raymq.actors.keeper.keeper_messages import (
    KEEPERS,
    NO_BALLOT,
    NOTHING,
    Accept,
    AcceptedBallot,
    Answer,
    Ballot,
    Inquire,
    KeeperCall,
    KeeperRefused,
    LeaseClaim,
    LeaseGiven,
    Prepare,
    Promised,
    Reason,
    Registered,
    Release,
    Renew,
    Request,
    Standing,
)
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.master_lease import LEASE_SECONDS, MasterLease, claim_of
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.keeper.in_memory_keepers import MemoryFile, group, group_with_master, replica

SET = KeeperSet(1, {1: KeeperMember("k1", "made-1")})
MASTERED = group_with_master()
CLAIM = LeaseClaim(1, "n1", 1)


class Bench:
    """Run one keeper on a file that outlives the keeper."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.file = MemoryFile()
        self.file.save(KeeperRecord("c", 1, "made-1", SET))
        self.start(just_founded=True)

    def start(self, *, just_founded: bool = False) -> None:
        self.keeper = Acceptor(self.file.load(), self.file, self.clock, just_founded=just_founded)

    def ask(self, request: Request, *, number: int = 1, incarnation: str = "made-1") -> Answer:
        return self.keeper.handle(KeeperCall(number, incarnation, request))

    def refused(self, request: Request) -> Reason:
        answer = self.ask(request)
        assert isinstance(answer, KeeperRefused)
        return answer.reason

    def decide(self, round_: int, state: object, *, moves: bool = True, key: str = "g") -> None:
        ballot = Ballot(round_, 1)
        assert isinstance(self.ask(Prepare(key, ballot, moves)), Promised)
        entry = Registered(round_, f"c{round_}", state)  # type: ignore[arg-type]
        assert self.ask(Accept(key, ballot, entry)) == AcceptedBallot(ballot)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_promise_refuses_lower_ballots_after_restart(bench: Bench) -> None:
    assert bench.ask(Prepare("g", Ballot(5, 1))) == Promised(Ballot(5, 1), NO_BALLOT, NOTHING)
    bench.start()
    assert bench.refused(Prepare("g", Ballot(5, 1))) is Reason.PREEMPTED
    assert bench.refused(Prepare("g", Ballot(4, 9))) is Reason.PREEMPTED
    assert bench.refused(Accept("g", Ballot(4, 9), NOTHING)) is Reason.PREEMPTED
    assert isinstance(bench.ask(Prepare("g", Ballot(5, 2))), Promised)


def test_next_promise_returns_accepted_value_after_restart(bench: Bench) -> None:
    entry = Registered(1, "c", group())
    bench.ask(Prepare("g", Ballot(1, 1)))
    bench.ask(Accept("g", Ballot(1, 1), entry))
    bench.start()
    assert bench.ask(Prepare("g", Ballot(2, 1))) == Promised(Ballot(2, 1), Ballot(1, 1), entry)
    assert bench.ask(Inquire("g")) == Standing(Ballot(2, 1), Ballot(1, 1), entry)


def test_failed_save_refuses_requests_until_restart(bench: Bench) -> None:
    bench.file.fails = True
    assert bench.refused(Prepare("g", Ballot(5, 1))) is Reason.FAILED
    bench.file.fails = False
    assert bench.refused(Inquire("g")) is Reason.FAILED, "nobody knows what the failed fsync has left"
    bench.start()
    assert isinstance(bench.ask(Prepare("g", Ballot(1, 1))), Promised)


def test_lease_blocks_change_of_master(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    assert bench.ask(Renew("g", CLAIM)) == LeaseGiven(LEASE_SECONDS)
    answer = bench.ask(Prepare("g", Ballot(2, 1), moves=True))
    assert answer == KeeperRefused(Reason.HELD, ballot=Ballot(1, 1), wait_seconds=LEASE_SECONDS)
    assert isinstance(bench.ask(Prepare("g", Ballot(2, 1))), Promised), "its own changes go on"
    taken = Registered(2, "c2", MASTERED.start_election())
    assert bench.refused(Accept("g", Ballot(2, 1), taken)) is Reason.HELD, "nor under a prepare that did not say so"
    bench.clock.advance(LEASE_SECONDS)
    assert bench.ask(Accept("g", Ballot(2, 1), taken)) == AcceptedBallot(Ballot(2, 1))


def test_released_lease_allows_new_master_at_once(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    bench.ask(Release("g", dataclasses.replace(CLAIM, nonce="another")))
    assert bench.refused(Prepare("g", Ballot(2, 1), moves=True)) is Reason.HELD, "only the holder ends it"
    bench.ask(Release("g", CLAIM))
    bench.decide(2, MASTERED.start_election())


@pytest.mark.parametrize(
    "later", [dataclasses.replace(CLAIM, nonce="next"), dataclasses.replace(CLAIM, epoch=3), LeaseClaim(2, "n2", 3)]
)
def test_late_release_keeps_newer_lease(bench: Bench, later: LeaseClaim) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    bench.ask(Release("g", CLAIM))
    state = MASTERED.start_election() if later.epoch > CLAIM.epoch else MASTERED
    record = replace(state.replicas[later.replica], nonce=later.nonce)
    state = replace(state.with_replica(later.replica, record), epoch=later.epoch)
    bench.decide(2, state.elected(later.replica, [later.replica]))
    assert bench.ask(Renew("g", later)) == LeaseGiven(LEASE_SECONDS)
    for _ in range(2):
        bench.ask(Release("g", CLAIM))
        assert bench.refused(Prepare("g", Ballot(3, 1), moves=True)) is Reason.HELD


@pytest.mark.parametrize(
    "claim", [LeaseClaim(2, "n2", 1), LeaseClaim(1, "n1", 0), LeaseClaim(1, "n1", 2), LeaseClaim(1, "before", 1)]
)
def test_only_registered_master_process_gets_lease(bench: Bench, claim: LeaseClaim) -> None:
    bench.decide(1, MASTERED)
    assert bench.refused(Renew("g", claim)) is Reason.NOT_MASTER


def test_promised_master_change_blocks_lease_renewal(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Prepare("g", Ballot(2, 7), moves=True))
    assert bench.refused(Renew("g", CLAIM)) is Reason.ELECTING
    bench.start()
    assert bench.refused(Renew("g", CLAIM)) is Reason.ELECTING, "a restart does not forget it"
    bench.decide(3, MASTERED, moves=False)
    assert bench.ask(Renew("g", CLAIM)) == LeaseGiven(LEASE_SECONDS), "who began it is dead: what stood is decided anew"


def test_restarted_keeper_blocks_master_change_for_one_ttl(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    bench.start()
    assert bench.refused(Prepare("g", Ballot(2, 1), moves=True)) is Reason.HELD
    assert isinstance(bench.ask(Prepare("g", Ballot(2, 1))), Promised)
    assert bench.refused(Accept("g", Ballot(2, 1), Registered(2, "c", MASTERED.start_election()))) is Reason.HELD
    assert bench.ask(Accept("g", Ballot(2, 1), Registered(2, "c", MASTERED.with_set([1])))) == AcceptedBallot((2, 1))
    assert bench.ask(Renew("g", CLAIM)) == LeaseGiven(LEASE_SECONDS)
    bench.ask(Release("g", CLAIM))
    bench.clock.advance(LEASE_SECONDS)
    assert isinstance(bench.ask(Prepare("g", Ballot(3, 1), moves=True)), Promised)


def test_keeper_without_file_is_no_voter(bench: Bench) -> None:
    bench.file = MemoryFile()
    bench.start()
    assert bench.refused(Prepare("g", Ballot(1, 1))) is Reason.NOT_A_VOTER
    assert bench.refused(Inquire("g")) is Reason.NOT_A_VOTER
    bench.file.save(KeeperRecord("c", 1, "made-again"))
    bench.start()
    assert bench.refused(Prepare("g", Ballot(1, 1))) is Reason.NOT_A_VOTER, "the others still mean the one before"
    assert isinstance(bench.ask(Prepare("g", Ballot(1, 1)), incarnation="made-again"), Promised)


def test_request_with_old_keeper_set_gets_newer_set(bench: Bench) -> None:
    joint = SET.with_member(2, KeeperMember("k2", "made-2"))
    bench.decide(1, joint, key=KEEPERS)
    answer = bench.ask(Inquire("g"), number=1)
    assert answer == KeeperRefused(Reason.OLD_SET, keepers=joint)
    assert isinstance(bench.ask(Inquire("g"), number=2), Standing)
    # A request for a former incarnation of this keeper also gets the newer set, and is no vote.
    assert bench.ask(Inquire("g"), number=1, incarnation="made-0") == KeeperRefused(Reason.NOT_A_VOTER, keepers=joint)
    assert bench.ask(Inquire("g"), number=2, incarnation="made-0") == KeeperRefused(Reason.NOT_A_VOTER)


def test_restarted_keeper_delays_only_groups_with_leases(bench: Bench) -> None:
    bench.decide(1, MASTERED.start_election())
    bench.start()
    bench.decide(2, MASTERED.start_election().elected(2, [2]))
    bench.decide(1, MASTERED, key="h")


def test_restarted_master_process_does_not_inherit_lease(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    again = MASTERED.with_replica(1, replica(1, "again"))
    assert claim_of(again) == LeaseClaim(1, "again1", 1)
    bench.ask(Prepare("g", Ballot(2, 1)))
    assert bench.refused(Accept("g", Ballot(2, 1), Registered(2, "c", again))) is Reason.HELD


# The lease on the side of the master.


def test_lease_counts_from_request_and_holds_four_fifths() -> None:
    clock = FakeClock(0.0)
    lease = MasterLease(clock)
    assert not lease.holds
    began = lease.ask()
    clock.advance(1.0)
    lease.given(began, LEASE_SECONDS)
    assert lease.holds
    assert lease.left_seconds == pytest.approx(0.6)
    clock.advance(0.6)
    assert not lease.holds
    assert lease.left_seconds == 0.0


def test_late_lease_answer_does_not_shorten_lease() -> None:
    clock = FakeClock(0.0)
    lease = MasterLease(clock)
    first = lease.ask()
    clock.advance(0.5)
    assert lease.is_due
    second = lease.ask()
    lease.given(second, LEASE_SECONDS)
    lease.given(first, LEASE_SECONDS)
    assert lease.left_seconds == pytest.approx(1.6)


def test_lease_expires_during_machine_sleep() -> None:
    """Use a clock that counts sleep, as `boottime` does, the default of the services."""
    clock = FakeClock(0.0)
    lease = MasterLease(clock)
    lease.given(lease.ask(), LEASE_SECONDS)
    clock.advance(3600)
    assert not lease.holds


def test_revoked_lease_does_not_hold() -> None:
    lease = MasterLease(FakeClock())
    lease.given(lease.ask(), LEASE_SECONDS)
    lease.revoke()
    assert not lease.holds
