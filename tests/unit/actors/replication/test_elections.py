"""Who becomes master, who may speak for a replica, and what a new master begins with."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

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
from raymq.actors.broker.replication.state_stream import StateStream
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.errors import RegisterUnavailable
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
from raymq.storage.errors import InvalidInput
from raymq.storage.state.state_changes import StateChange
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.keeper.keepers_at_hand import group, mastered, replica

STATE = mastered(1, 6, 3).start_election()


def at(offset: int, sequence: int = 0) -> StreamPosition:
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


def test_the_newest_epoch_comes_first_then_the_longest_log_then_the_priority() -> None:
    assert winner(fenced(1, 5, at(900)), fenced(2, 6, at(100)), fenced(3, 6, at(99))) == 2
    assert winner(fenced(1, 6, at(100, 3)), fenced(2, 6, at(100, 4)), fenced(3, 6, at(100, 2))) == 2
    assert winner(fenced(1, 6, at(100)), fenced(2, 6, at(100), priority=10), fenced(3, 6, at(100))) == 2
    assert winner(fenced(2, 6, at(100)), fenced(3, 6, at(100))) == 2


def test_trap_8_logs_that_differ_by_more_than_2_gib_are_compared_rightly() -> None:
    assert winner(fenced(1, 6, at(1 << 20)), fenced(2, 6, at((1 << 20) + (1 << 31)))) == 2
    assert winner(fenced(1, 6, at(0)), fenced(2, 6, at(1 << 32))) == 2


def test_trap_9_only_what_was_said_after_the_seal_counts() -> None:
    assert winner(fenced(1, 6, at(900), fenced=STATE.epoch - 1), fenced(2, 6, at(100))) == 2
    assert isinstance(elect(fenced(1, 6, at(900), fenced=0)), NoWinner)


def test_who_reaches_no_keeper_is_not_elected_before_one_who_does() -> None:
    """It could not hold a lease: the coordinator, which does reach it, would elect it again and again."""
    assert winner(fenced(1, 6, at(900), reaches_keepers=False), fenced(2, 6, at(100))) == 2
    assert winner(fenced(1, 6, at(900), reaches_keepers=False)) == 1
    found = elect(fenced(1, 6, at(100), reaches_keepers=False), fenced(2, 6, at(100)))
    assert found == Winner(2, frozenset({1, 2}))


def test_only_members_in_sync_are_elected() -> None:
    state = dataclasses.replace(STATE, in_sync=frozenset({2, 3}))
    assert winner(fenced(1, 6, at(900)), fenced(2, 6, at(100)), state=state) == 2
    found = elect(fenced(1, 6, at(900)), state=state)
    assert isinstance(found, NoWinner)
    assert "[2, 3]" in found.reason


def test_those_with_exactly_the_same_are_in_sync_from_the_beginning() -> None:
    found = elect(fenced(1, 6, at(100)), fenced(2, 6, at(100)), fenced(3, 6, at(90)))
    assert found == Winner(1, frozenset({1, 2}))


def test_another_directory_or_process_has_no_say() -> None:
    assert winner(fenced(1, 6, at(900), nonce="before"), fenced(2, 6, at(100))) == 2
    assert winner(fenced(1, 6, at(900), identity="copy"), fenced(2, 6, at(100))) == 2
    assert winner(fenced(1, 6, at(900), healthy=False), fenced(2, 6, at(100))) == 2
    assert choose_master(STATE, {7: fenced(7, 9, at(900))}) == elect()


def test_an_operator_may_choose_among_those_that_lose_nothing() -> None:
    answers = (fenced(1, 6, at(100)), fenced(2, 6, at(90)))
    assert winner(*answers, designated=2) == 2
    assert isinstance(elect(*answers, designated=3), NoWinner)
    state = dataclasses.replace(STATE, in_sync=frozenset({1}))
    assert isinstance(elect(*answers, state=state, designated=2), NoWinner)


def test_an_unclean_election_is_made_by_hand_only_and_told() -> None:
    state = dataclasses.replace(STATE, in_sync=frozenset({1}))
    assert isinstance(elect(fenced(2, 6, at(90)), fenced(3, 6, at(95)), state=state), NoWinner)
    found = elect(fenced(2, 6, at(90)), fenced(3, 6, at(95)), state=state, unclean=True)
    assert isinstance(found, Winner)
    assert found.replica == 3
    assert found.in_sync == {3}
    assert "unclean" in found.warning
    assert found.may_lack


def test_trap_24_the_last_member_that_may_have_lost_its_tail_does_not_shorten_the_others() -> None:
    state = dataclasses.replace(STATE, in_sync=frozenset({1}))
    lost = fenced(1, 6, at(50), tail_lost=True)
    assert isinstance(elect(lost, state=state), NoWinner), "fenced until the others have answered"
    assert isinstance(elect(lost, fenced(2, 6, at(80)), state=state), NoWinner)
    found = elect(lost, fenced(2, 6, at(80)), fenced(3, 6, at(70)), state=state)
    assert isinstance(found, Winner)
    assert found.replica == 2
    assert found.may_lack
    by_hand = elect(lost, fenced(3, 6, at(40)), state=state, unclean=True)
    assert isinstance(by_hand, Winner)
    assert by_hand.replica == 1


def test_a_member_that_is_whole_is_preferred_to_a_longer_one_that_may_not_be() -> None:
    assert winner(fenced(1, 6, at(900), tail_lost=True), fenced(2, 6, at(100))) == 2


def test_trap_10_the_new_master_keeps_its_tail_and_confirms_it_in_its_epoch() -> None:
    entry = first_entry(EpochMap([EpochStart(3, BEGIN)]), 7, BEGIN, at(500, 9))
    assert entry == EpochStart(7, at(500, 9))
    made = InSyncSet(2, {2}, entry.start, FakeClock(), confirmed=at(400, 5))
    assert made.confirmed == at(500, 9)


def test_a_store_that_never_had_an_epoch_has_all_it_has_in_its_first_one() -> None:
    assert first_entry(EpochMap(), 1, at(100, 0), at(500, 9)) == EpochStart(1, at(100))


# A start in the register.

MASTERED = mastered(1, 2, 3)


def claim(number: int = 2, nonce: str = "new", *before: str, identity: str | None = None, **more: bool) -> ReplicaClaim:
    record = dataclasses.replace(replica(number), nonce=nonce)
    record = dataclasses.replace(record, identity=identity or record.identity)
    return ReplicaClaim(number, record, before or (f"n{number}",), **more)


def test_a_new_replica_is_taken_in_but_not_into_the_set() -> None:
    after = apply_claim(MASTERED, claim(4), registered_answers=False)
    assert after.replicas.keys() == {1, 2, 3, 4}
    assert after.in_sync == {1, 2, 3}
    assert apply_claim(GroupState(), claim(1), registered_answers=False).in_sync == {1}


def test_a_restart_is_known_again_and_a_repeated_claim_changes_nothing() -> None:
    after = apply_claim(MASTERED, claim(2, "new", "n2", "never registered"), registered_answers=False)
    assert after.replicas[2].nonce == "new"
    assert (after.master, after.epoch, after.in_sync) == (1, 2, {1, 2, 3})
    assert apply_claim(after, claim(2, "new", "n2"), registered_answers=True) == after


def test_a_master_that_starts_anew_is_one_no_more() -> None:
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
def test_only_the_lease_of_a_process_that_is_surely_dead_is_ended(registered: str, place: str, ends: bool) -> None:
    record = dataclasses.replace(replica(1), nonce=registered)
    state = MASTERED.with_replica(1, record)
    expected = LeaseClaim(1, registered, MASTERED.epoch) if ends else None
    assert predecessor_lease(state, 1, place) == expected
    assert predecessor_lease(state, 2, place) is None, "it is another replica's"
    assert predecessor_lease(state.start_election(), 1, place) is None, "it is master no more"
    assert predecessor_lease(None, 1, place) is None


def test_a_process_does_not_end_the_lease_of_its_next_one() -> None:
    """A word that comes late names the process that is dead, and no other."""
    former, later = (MASTERED.with_replica(1, dataclasses.replace(replica(1), nonce=each)) for each in ("1@x", "2@x"))
    assert predecessor_lease(former, 1, "x") != predecessor_lease(later, 1, "x")
    assert make_nonce("1", "x") == "1@x"
    assert make_nonce("1", "") == "1"


class BusyKeepers:
    """Miss so many questions; it is all of a register that ends a former lease."""

    def __init__(self, misses: int) -> None:
        self.misses = misses
        self.ended: list[LeaseClaim] = []

    async def read(self, _: str) -> Registered:
        if self.misses:
            self.misses -= 1
            raise RegisterUnavailable("no majority could be asked")
        return Registered(1, "", MASTERED.with_replica(1, dataclasses.replace(replica(1), nonce="drawn@here")))

    async def release(self, _: str, claim: LeaseClaim) -> None:
        self.ended.append(claim)


@pytest.mark.parametrize(("misses", "ends"), [(0, True), (2, True), (100, False)])
def test_busy_keepers_are_asked_again_for_a_dead_lease_but_not_for_ever(misses: int, ends: bool) -> None:
    keepers = BusyKeepers(misses)
    asyncio.run(end_predecessor_lease(keepers, "broker-a", 1, "here"))  # type: ignore[arg-type]
    assert keepers.ended == ([LeaseClaim(1, "drawn@here", MASTERED.epoch)] if ends else [])


def test_who_may_have_lost_its_tail_leaves_the_set_unless_it_is_the_last() -> None:
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
def test_trap_33_a_copy_of_a_directory_is_refused_by_name(made: ReplicaClaim, answers: bool, words: str) -> None:
    with pytest.raises(ClaimRefused, match=words) as refused:
        apply_claim(MASTERED, made, registered_answers=answers)
    assert "replica 2" in str(refused.value)


def test_an_empty_directory_takes_the_place_of_one_that_is_lost_and_in_sync_no_more() -> None:
    made = claim(2, identity="another", is_empty=True)
    with pytest.raises(ClaimWaits, match="replica 2 is in sync with a directory"):
        apply_claim(MASTERED, made, registered_answers=False)
    after = apply_claim(MASTERED.with_set([1, 3]), made, registered_answers=False)
    assert (after.replicas[2].identity, after.in_sync) == ("another", {1, 3})
    with pytest.raises(ClaimRefused, match="has the directory dir-2"):
        apply_claim(MASTERED.with_set([1, 3]), made, registered_answers=True)


# State frames.


def test_numbers_go_on_over_folding_and_restarts() -> None:
    stream = StateStream()
    frames = [stream.make(b"x", 10 * number) for number in range(5)]
    assert [frame.sequence for frame in frames] == [1, 2, 3, 4, 5]
    assert list(stream.fold(3, at(100, 4))) == frames[:3]
    assert (stream.folded, stream.last, list(stream.after(3))) == (3, 5, frames[3:])
    again = StateStream(3, frames[3:])
    assert again.make(b"y", 50).sequence == 6


def test_trap_28_only_what_is_confirmed_is_folded() -> None:
    stream = StateStream()
    for number in range(5):
        stream.make(b"x", number)
    with pytest.raises(InvalidInput):
        stream.fold(4, at(100, 3))
    stream.fold(3, at(100, 3))
    stream.cut(3)
    assert stream.last == 3
    with pytest.raises(InvalidInput):
        stream.cut(2)
    with pytest.raises(InvalidInput):
        stream.after(2)


def test_trap_11_state_never_speaks_of_messages_that_are_gone() -> None:
    stream = StateStream()
    for offset in (10, 20, 20, 30):
        stream.make(b"progress", offset)
    assert stream.clamp(20) == 1
    assert stream.last == 3
    assert stream.clamp(5) == 3


def test_a_frame_that_does_not_follow_is_refused() -> None:
    stream = StateStream(4)
    stream.take(StateChange(5, 100, b"x"))
    for frame in (
        StateChange(5, 100, b"x"),
        StateChange(7, 100, b"x"),
        StateChange(6, 99, b"x"),
        StateChange(6, 100, b""),
    ):
        with pytest.raises(ProtocolError):
            stream.take(frame)


def test_the_group_of_the_tests_is_one_that_may_be() -> None:
    for state in (STATE, MASTERED, group(3)):
        state.validate()


def test_the_first_replica_of_a_group_is_number_1_which_may_have_the_messages_of_a_group_of_one_copy() -> None:
    assert founding_blocker(None, 1) is not None
    empty = GroupState()
    assert founding_blocker(empty, 1) is None
    assert founding_blocker(empty, 2) is not None
    begun = apply_claim(empty, ReplicaClaim(1, replica(1), ()), registered_answers=False)
    assert begun.in_sync == {1}
    assert founding_blocker(begun, 2) is None
    assert apply_claim(begun, ReplicaClaim(2, replica(2), ()), registered_answers=False).in_sync == {1}
