"""One keeper: what it promises, accepts and refuses, and what it may not forget."""

from __future__ import annotations

import dataclasses

import pytest

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
from tests.unit.actors.keeper.keepers_at_hand import MemoryFile, group, mastered, replica

SET = KeeperSet(1, {1: KeeperMember("k1", "made-1")})
MASTERED = mastered()
CLAIM = LeaseClaim(1, "n1", 1)


class Bench:
    """One keeper on a file that outlives it."""

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


def test_a_promise_refuses_smaller_ballots_also_after_a_restart(bench: Bench) -> None:
    assert bench.ask(Prepare("g", Ballot(5, 1))) == Promised(Ballot(5, 1), NO_BALLOT, NOTHING)
    bench.start()
    assert bench.refused(Prepare("g", Ballot(5, 1))) is Reason.PREEMPTED
    assert bench.refused(Prepare("g", Ballot(4, 9))) is Reason.PREEMPTED
    assert bench.refused(Accept("g", Ballot(4, 9), NOTHING)) is Reason.PREEMPTED
    assert isinstance(bench.ask(Prepare("g", Ballot(5, 2))), Promised)


def test_what_was_accepted_is_told_to_the_next_ballot_also_after_a_restart(bench: Bench) -> None:
    entry = Registered(1, "c", group())
    bench.ask(Prepare("g", Ballot(1, 1)))
    bench.ask(Accept("g", Ballot(1, 1), entry))
    bench.start()
    assert bench.ask(Prepare("g", Ballot(2, 1))) == Promised(Ballot(2, 1), Ballot(1, 1), entry)
    assert bench.ask(Inquire("g")) == Standing(Ballot(2, 1), Ballot(1, 1), entry)


def test_nothing_is_answered_that_is_not_on_disk(bench: Bench) -> None:
    bench.file.fails = True
    assert bench.refused(Prepare("g", Ballot(5, 1))) is Reason.FAILED
    bench.file.fails = False
    assert bench.refused(Inquire("g")) is Reason.FAILED, "nobody knows what the failed fsync has left"
    bench.start()
    assert isinstance(bench.ask(Prepare("g", Ballot(1, 1))), Promised)


def test_a_master_with_a_lease_is_not_taken_away(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    assert bench.ask(Renew("g", CLAIM)) == LeaseGiven(LEASE_SECONDS)
    answer = bench.ask(Prepare("g", Ballot(2, 1), moves=True))
    assert answer == KeeperRefused(Reason.HELD, ballot=Ballot(1, 1), wait_seconds=LEASE_SECONDS)
    assert isinstance(bench.ask(Prepare("g", Ballot(2, 1))), Promised), "its own changes go on"
    taken = Registered(2, "c2", MASTERED.start_election())
    assert bench.refused(Accept("g", Ballot(2, 1), taken)) is Reason.HELD, "nor under a prepare that did not say so"
    bench.clock.advance(LEASE_SECONDS)
    assert bench.ask(Accept("g", Ballot(2, 1), taken)) == AcceptedBallot(Ballot(2, 1))


def test_a_master_that_steps_down_is_not_waited_for(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    bench.ask(Release("g", dataclasses.replace(CLAIM, nonce="another")))
    assert bench.refused(Prepare("g", Ballot(2, 1), moves=True)) is Reason.HELD, "only the holder ends it"
    bench.ask(Release("g", CLAIM))
    bench.decide(2, MASTERED.start_election())


@pytest.mark.parametrize(
    "later", [dataclasses.replace(CLAIM, nonce="next"), dataclasses.replace(CLAIM, epoch=3), LeaseClaim(2, "n2", 3)]
)
def test_a_late_word_that_a_holder_is_dead_ends_no_newer_lease(bench: Bench, later: LeaseClaim) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    bench.ask(Release("g", CLAIM))
    state = MASTERED.start_election() if later.epoch > CLAIM.epoch else MASTERED
    record = dataclasses.replace(state.replicas[later.replica], nonce=later.nonce)
    state = dataclasses.replace(state.with_replica(later.replica, record), epoch=later.epoch)
    bench.decide(2, state.elected(later.replica, [later.replica]))
    assert bench.ask(Renew("g", later)) == LeaseGiven(LEASE_SECONDS)
    for _ in range(2):
        bench.ask(Release("g", CLAIM))
        assert bench.refused(Prepare("g", Ballot(3, 1), moves=True)) is Reason.HELD


@pytest.mark.parametrize(
    "claim", [LeaseClaim(2, "n2", 1), LeaseClaim(1, "n1", 0), LeaseClaim(1, "n1", 2), LeaseClaim(1, "before", 1)]
)
def test_only_the_registered_process_of_the_master_gets_the_lease(bench: Bench, claim: LeaseClaim) -> None:
    bench.decide(1, MASTERED)
    assert bench.refused(Renew("g", claim)) is Reason.NOT_MASTER


def test_no_lease_is_given_while_a_change_of_the_master_is_promised(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Prepare("g", Ballot(2, 7), moves=True))
    assert bench.refused(Renew("g", CLAIM)) is Reason.ELECTING
    bench.start()
    assert bench.refused(Renew("g", CLAIM)) is Reason.ELECTING, "a restart does not forget it"
    bench.decide(3, MASTERED, moves=False)
    assert bench.ask(Renew("g", CLAIM)) == LeaseGiven(LEASE_SECONDS), "who began it is dead: what stood is decided anew"


def test_trap_32_a_keeper_that_restarted_forgot_its_leases_and_changes_no_master_for_one_ttl(bench: Bench) -> None:
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


def test_trap_23_a_keeper_without_its_file_has_no_voice(bench: Bench) -> None:
    bench.file = MemoryFile()
    bench.start()
    assert bench.refused(Prepare("g", Ballot(1, 1))) is Reason.NOT_A_VOTER
    assert bench.refused(Inquire("g")) is Reason.NOT_A_VOTER
    bench.file.save(KeeperRecord("c", 1, "made-again"))
    bench.start()
    assert bench.refused(Prepare("g", Ballot(1, 1))) is Reason.NOT_A_VOTER, "the others still mean the one before"
    assert isinstance(bench.ask(Prepare("g", Ballot(1, 1)), incarnation="made-again"), Promised)


def test_who_knows_an_older_set_of_keepers_is_told_the_newer_one(bench: Bench) -> None:
    joint = SET.with_member(2, KeeperMember("k2", "made-2"))
    bench.decide(1, joint, key=KEEPERS)
    answer = bench.ask(Inquire("g"), number=1)
    assert answer == KeeperRefused(Reason.OLD_SET, keepers=joint)
    assert isinstance(bench.ask(Inquire("g"), number=2), Standing)
    # Also who means a keeper that was there before this one; it is no vote.
    assert bench.ask(Inquire("g"), number=1, incarnation="made-0") == KeeperRefused(Reason.NOT_A_VOTER, keepers=joint)
    assert bench.ask(Inquire("g"), number=2, incarnation="made-0") == KeeperRefused(Reason.NOT_A_VOTER)


def test_a_restarted_keeper_delays_only_what_it_may_have_given_a_lease_of(bench: Bench) -> None:
    bench.decide(1, MASTERED.start_election())
    bench.start()
    bench.decide(2, MASTERED.start_election().elected(2, [2]))
    bench.decide(1, MASTERED, key="h")


def test_a_restarted_process_of_the_master_is_another_one(bench: Bench) -> None:
    bench.decide(1, MASTERED)
    bench.ask(Renew("g", CLAIM))
    again = MASTERED.with_replica(1, replica(1, "again"))
    assert claim_of(again) == LeaseClaim(1, "again1", 1)
    bench.ask(Prepare("g", Ballot(2, 1)))
    assert bench.refused(Accept("g", Ballot(2, 1), Registered(2, "c", again))) is Reason.HELD


# A master's own lease.


def test_a_lease_counts_from_before_it_was_asked_for_and_is_used_to_four_fifths() -> None:
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


def test_an_old_answer_does_not_shorten_a_lease() -> None:
    clock = FakeClock(0.0)
    lease = MasterLease(clock)
    first = lease.ask()
    clock.advance(0.5)
    assert lease.is_due
    second = lease.ask()
    lease.given(second, LEASE_SECONDS)
    lease.given(first, LEASE_SECONDS)
    assert lease.left_seconds == pytest.approx(1.6)


def test_trap_31_a_lease_ends_while_the_machine_sleeps() -> None:
    """The clock that is handed in counts sleep; the default of the shells is `boottime`, which does."""
    clock = FakeClock(0.0)
    lease = MasterLease(clock)
    lease.given(lease.ask(), LEASE_SECONDS)
    clock.advance(3600)
    assert not lease.holds


def test_who_gives_a_lease_up_has_none() -> None:
    lease = MasterLease(FakeClock())
    lease.given(lease.ask(), LEASE_SECONDS)
    lease.revoke()
    assert not lease.holds
