"""Test elections, claims of starting replicas, and how a new master begins."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from raymq.actors.broker.replica.replica_claimer import end_predecessor_lease
from raymq.actors.broker.replication.election import FencedState, NoWinner, Winner, choose_master, first_entry
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.broker.replication.replica_claims import (
    ClaimRefused,
    ClaimWaits,
    ReplicaClaim,
    apply_claim,
    founding_blocker,
    make_nonce,
    predecessor_lease,
)
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.errors import RegisterUnavailable
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.keeper.in_memory_keepers import group_with_master, replica
from tests.unit.actors.replication.model.model_journal import ModelJournal

STATE = group_with_master(1, 6, 3).start_election()


def position(offset: int, sequence: int = 0) -> StreamPosition:
    return StreamPosition(offset, sequence)


def fenced(number: int, epoch: int, end: StreamPosition, **more: object) -> FencedState:
    made = FencedState(number, f"dir-{number}", f"n{number}", STATE.epoch, epoch, end)
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def elect(*answers: FencedState, state: GroupState = STATE, **more: object) -> Winner | NoWinner:
    return choose_master(state, {answer.replica: answer for answer in answers}, **more)  # type: ignore[arg-type]


def winner(*answers: FencedState, **more: object) -> int:
    found = elect(*answers, **more)  # type: ignore[arg-type]
    assert isinstance(found, Winner), found
    return found.replica


def test_election_compares_epoch_then_log_length_then_priority() -> None:
    assert winner(fenced(1, 5, position(900)), fenced(2, 6, position(100)), fenced(3, 6, position(99))) == 2
    assert winner(fenced(1, 6, position(100, 3)), fenced(2, 6, position(100, 4)), fenced(3, 6, position(100, 2))) == 2
    assert (
        winner(fenced(1, 6, position(100)), fenced(2, 6, position(100), priority=10), fenced(3, 6, position(100))) == 2
    )
    assert winner(fenced(2, 6, position(100)), fenced(3, 6, position(100))) == 2


def test_election_compares_log_lengths_beyond_2_gib() -> None:
    assert winner(fenced(1, 6, position(1 << 20)), fenced(2, 6, position((1 << 20) + (1 << 31)))) == 2
    assert winner(fenced(1, 6, position(0)), fenced(2, 6, position(1 << 32))) == 2


def test_election_ignores_answers_from_before_fencing() -> None:
    assert winner(fenced(1, 6, position(900), fenced=STATE.epoch - 1), fenced(2, 6, position(100))) == 2
    assert isinstance(elect(fenced(1, 6, position(900), fenced=0)), NoWinner)


def test_election_prefers_replica_that_reaches_keepers() -> None:
    """Guard against repeated elections of a replica that cannot get a lease."""
    assert winner(fenced(1, 6, position(900), reaches_keepers=False), fenced(2, 6, position(100))) == 2
    assert winner(fenced(1, 6, position(900), reaches_keepers=False)) == 1
    found = elect(fenced(1, 6, position(100), reaches_keepers=False), fenced(2, 6, position(100)))
    assert found == Winner(2, frozenset({1, 2}))


def test_only_in_sync_replicas_are_elected() -> None:
    state = replace(STATE, in_sync=frozenset({2, 3}))
    assert winner(fenced(1, 6, position(900)), fenced(2, 6, position(100)), state=state) == 2
    found = elect(fenced(1, 6, position(900)), state=state)
    assert isinstance(found, NoWinner)
    assert "[2, 3]" in found.reason


def test_replicas_with_equal_logs_start_in_sync() -> None:
    found = elect(fenced(1, 6, position(100)), fenced(2, 6, position(100)), fenced(3, 6, position(90)))
    assert found == Winner(1, frozenset({1, 2}))


def test_election_ignores_unregistered_or_unhealthy_replicas() -> None:
    assert winner(fenced(1, 6, position(900), nonce="before"), fenced(2, 6, position(100))) == 2
    assert winner(fenced(1, 6, position(900), identity="copy"), fenced(2, 6, position(100))) == 2
    assert winner(fenced(1, 6, position(900), healthy=False), fenced(2, 6, position(100))) == 2
    assert choose_master(STATE, {7: fenced(7, 9, position(900))}) == elect()


def test_operator_may_designate_any_in_sync_replica() -> None:
    answers = (fenced(1, 6, position(100)), fenced(2, 6, position(90)))
    assert winner(*answers, designated=2) == 2
    assert isinstance(elect(*answers, designated=3), NoWinner)
    state = replace(STATE, in_sync=frozenset({1}))
    assert isinstance(elect(*answers, state=state, designated=2), NoWinner)


def test_unclean_election_requires_operator_and_warns() -> None:
    state = replace(STATE, in_sync=frozenset({1}))
    assert isinstance(elect(fenced(2, 6, position(90)), fenced(3, 6, position(95)), state=state), NoWinner)
    found = elect(fenced(2, 6, position(90)), fenced(3, 6, position(95)), state=state, unclean=True)
    assert isinstance(found, Winner)
    assert found.replica == 3
    assert found.in_sync == {3}
    assert "unclean" in found.warning
    assert found.may_lack


def test_last_member_with_lost_tail_yields_to_longer_log() -> None:
    state = replace(STATE, in_sync=frozenset({1}))
    lost = fenced(1, 6, position(50), tail_lost=True)
    assert isinstance(elect(lost, state=state), NoWinner), "fenced until the others have answered"
    assert isinstance(elect(lost, fenced(2, 6, position(80)), state=state), NoWinner)
    found = elect(lost, fenced(2, 6, position(80)), fenced(3, 6, position(70)), state=state)
    assert isinstance(found, Winner)
    assert found.replica == 2
    assert found.may_lack
    by_hand = elect(lost, fenced(3, 6, position(40)), state=state, unclean=True)
    assert isinstance(by_hand, Winner)
    assert by_hand.replica == 1


def test_election_prefers_intact_log_to_longer_lost_tail() -> None:
    assert winner(fenced(1, 6, position(900), tail_lost=True), fenced(2, 6, position(100))) == 2


def test_new_master_keeps_and_confirms_its_tail() -> None:
    entry = first_entry(EpochMap([EpochStart(3, BEGIN)]), 7, BEGIN, position(500, 9))
    assert entry == EpochStart(7, position(500, 9))
    made = InSyncSet(2, {2}, entry.start, FakeClock(), confirmed=position(400, 5))
    assert made.confirmed == position(500, 9)


def test_first_epoch_covers_existing_log() -> None:
    assert first_entry(EpochMap(), 1, position(100, 0), position(500, 9)) == EpochStart(1, position(100))


# The claim of a starting replica in the register.

MASTERED = group_with_master(1, 2, 3)


def claim(number: int = 2, nonce: str = "new", *before: str, identity: str | None = None, **more: bool) -> ReplicaClaim:
    record = replace(replica(number), nonce=nonce)
    record = replace(record, identity=identity or record.identity)
    return ReplicaClaim(number, record, before or (f"n{number}",), **more)


def test_new_replica_joins_group_but_not_in_sync_set() -> None:
    after = apply_claim(MASTERED, claim(4), registered_answers=False)
    assert after.replicas.keys() == {1, 2, 3, 4}
    assert after.in_sync == {1, 2, 3}
    assert apply_claim(GroupState(), claim(1), registered_answers=False).in_sync == {1}


def test_restart_updates_nonce_and_repeated_claim_is_no_op() -> None:
    after = apply_claim(MASTERED, claim(2, "new", "n2", "never registered"), registered_answers=False)
    assert after.replicas[2].nonce == "new"
    assert (after.master, after.epoch, after.in_sync) == (1, 2, {1, 2, 3})
    assert apply_claim(after, claim(2, "new", "n2"), registered_answers=True) == after


def test_restarted_master_is_deposed() -> None:
    after = apply_claim(MASTERED, claim(1), registered_answers=False)
    assert (after.master, after.epoch) == (None, 3)


@pytest.mark.parametrize(
    ("registered", "place", "ends"),
    [
        pytest.param("drawn@here", "here", True, id="the last process with this lock was killed"),
        pytest.param("drawn@there", "here", False, id="a copy, another machine or another start of it"),
        pytest.param("drawn", "here", False, id="an older release, or a file system that is not local"),
        pytest.param("drawn", "", False, id="this file system is not local"),
        pytest.param("drawn@", "", False, id="no lock is not the same as no lock"),
        pytest.param("here", "here", False, id="a text that was drawn is no lock"),
    ],
)
def test_only_lease_of_surely_dead_process_is_released(registered: str, place: str, ends: bool) -> None:
    record = replace(replica(1), nonce=registered)
    state = MASTERED.with_replica(1, record)
    expected = LeaseClaim(1, registered, MASTERED.epoch) if ends else None
    assert predecessor_lease(state, 1, place) == expected
    assert predecessor_lease(state, 2, place) is None, "it is another replica's"
    assert predecessor_lease(state.start_election(), 1, place) is None, "it is master no more"
    assert predecessor_lease(None, 1, place) is None


def test_late_release_keeps_lease_of_next_process() -> None:
    """Check that a late release names the dead process and no other."""
    former, later = (MASTERED.with_replica(1, replace(replica(1), nonce=each)) for each in ("1@x", "2@x"))
    assert predecessor_lease(former, 1, "x") != predecessor_lease(later, 1, "x")
    assert make_nonce("1", "x") == "1@x"
    assert make_nonce("1", "") == "1"


class BusyKeepers:
    """Fail the first `misses` reads; implement only what the release of a former lease needs."""

    def __init__(self, misses: int) -> None:
        self.misses = misses
        self.ended: list[LeaseClaim] = []

    async def read(self, _: str) -> Registered:
        if self.misses:
            self.misses -= 1
            raise RegisterUnavailable("no majority could be asked")
        return Registered(1, "", MASTERED.with_replica(1, replace(replica(1), nonce="drawn@here")))

    async def release(self, _: str, claim: LeaseClaim) -> None:
        self.ended.append(claim)


@pytest.mark.parametrize(("misses", "ends"), [(0, True), (2, True), (100, False)])
def test_lease_release_retries_busy_keepers_up_to_a_limit(misses: int, ends: bool) -> None:
    keepers = BusyKeepers(misses)
    asyncio.run(end_predecessor_lease(keepers, "broker-a", 1, "here"))  # type: ignore[arg-type]
    assert keepers.ended == ([LeaseClaim(1, "drawn@here", MASTERED.epoch)] if ends else [])


def test_replica_with_lost_tail_leaves_in_sync_set_unless_last() -> None:
    after = apply_claim(MASTERED, claim(2, tail_lost=True), registered_answers=False)
    assert (after.in_sync, after.set_epoch) == ({1, 3}, MASTERED.set_epoch + 1)
    alone = MASTERED.with_set([1])
    assert apply_claim(alone, claim(1, tail_lost=True), registered_answers=False).in_sync == {1}


@pytest.mark.parametrize(
    ("made", "answers", "words"),
    [
        (claim(2, identity="another"), False, "has the directory dir-2"),
        (claim(2, "new", "older"), False, "after this directory was copied or backed up"),
        (claim(2), True, "two processes"),
    ],
)
def test_claim_of_copied_directory_is_refused(made: ReplicaClaim, answers: bool, words: str) -> None:
    with pytest.raises(ClaimRefused, match=words) as refused:
        apply_claim(MASTERED, made, registered_answers=answers)
    assert "replica 2" in str(refused.value)


def test_empty_directory_replaces_only_replica_out_of_sync() -> None:
    made = claim(2, identity="another", is_empty=True)
    with pytest.raises(ClaimWaits, match="replica 2 is in sync with a directory"):
        apply_claim(MASTERED, made, registered_answers=False)
    after = apply_claim(MASTERED.with_set([1, 3]), made, registered_answers=False)
    assert (after.replicas[2].identity, after.in_sync) == ("another", {1, 3})
    with pytest.raises(ClaimRefused, match="has the directory dir-2"):
        apply_claim(MASTERED.with_set([1, 3]), made, registered_answers=True)


# The model of the state journal.


def test_event_numbers_continue_after_compaction_and_restart() -> None:
    journal = ModelJournal()
    events = [journal.append(b"x", 10 * number) for number in range(5)]
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert list(journal.compact(3, position(100, 4))) == events[:3]
    assert (journal.snapshot, journal.last, list(journal.after(3))) == (3, 5, events[3:])
    again = ModelJournal(3, events[3:])
    assert again.append(b"y", 50).sequence == 6


def test_only_confirmed_events_are_compacted() -> None:
    journal = ModelJournal()
    for number in range(5):
        journal.append(b"x", number)
    with pytest.raises(InvalidInput):
        journal.compact(4, position(100, 3))
    journal.compact(3, position(100, 3))
    journal.cut(3)
    assert journal.last == 3
    with pytest.raises(InvalidInput):
        journal.cut(2)
    with pytest.raises(InvalidInput):
        journal.after(2)


def test_clamp_drops_state_of_missing_messages() -> None:
    journal = ModelJournal()
    for offset in (10, 20, 20, 30):
        journal.append(b"progress", offset)
    assert journal.clamp(20) == 1
    assert journal.last == 3
    assert journal.clamp(5) == 3


def test_out_of_order_event_raises_protocol_error() -> None:
    journal = ModelJournal(4)
    journal.take(JournalEvent(5, 100, b"x"))
    for event in (
        JournalEvent(5, 100, b"x"),
        JournalEvent(7, 100, b"x"),
        JournalEvent(6, 99, b"x"),
        JournalEvent(6, 100, b""),
    ):
        with pytest.raises(ProtocolError):
            journal.take(event)


def test_first_replica_of_group_must_be_number_1() -> None:
    assert founding_blocker(None, 1) is not None
    empty = GroupState()
    assert founding_blocker(empty, 1) is None
    assert founding_blocker(empty, 2) is not None
    begun = apply_claim(empty, ReplicaClaim(1, replica(1), ()), registered_answers=False)
    assert begun.in_sync == {1}
    assert founding_blocker(begun, 2) is None
    assert apply_claim(begun, ReplicaClaim(2, replica(2), ()), registered_answers=False).in_sync == {1}
