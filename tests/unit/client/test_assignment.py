"""Test how a push consumer takes over and releases a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client.push.rebalance import (
    LONGEST_SECONDS,
    RETURN_SECONDS,
    AwaitRunningCalls,
    CommitFinal,
    DropQueue,
    FindStartOffset,
    Instruction,
    LockQueues,
    OpenQueue,
    QueueAssignment,
    QueueBackoffs,
    RebalanceResult,
    Stage,
    UnlockQueue,
)
from tests.unit.actors.clock import FakeClock
from tests.unit.client.invariants import check_assignment

Q, OTHER = MessageQueue("t", "b", 0), MessageQueue("t", "c", 1)
Event = Callable[[QueueAssignment], list[Instruction]]


@dataclass(frozen=True)
class Position:
    """The position of a released queue."""

    commit_offset: int
    incarnation: int = 0
    epoch: int = 0


def rebalance_result(
    *mine: MessageQueue, unreached: frozenset[MessageQueue] = frozenset(), is_stable: bool = True
) -> RebalanceResult:
    return RebalanceResult(set(mine), {Q, OTHER}, unreached, is_stable)


EVENTS: dict[str, Event] = {
    "mine": lambda each: each.rebalance_queues(rebalance_result(Q)),
    "another's": lambda each: each.rebalance_queues(rebalance_result()),
    "lock given": lambda each: each.locked([Q], {Q}),
    "lock not given": lambda each: each.locked([Q], set()),
    "start found": lambda each: each.start_found(Q, 7, 0),
    "start unknown": lambda each: each.start_unknown(Q),
    "gone": lambda each: each.gone(Q),
    "lock lost": lambda each: each.locks_lost({Q}),
    "calls over": lambda each: each.calls_finished(Q),
    "committed": lambda each: each.final_commit_done(Q, Position(9), told=5, saved=True),
    "commit failed": lambda each: each.final_commit_done(Q, Position(9), told=5, saved=False),
    "unlocked": lambda each: each.unlocked(Q),
}
LOCKING, WAITING, FINDING, OPEN = Stage.LOCKING, Stage.WAITING, Stage.FINDING, Stage.OPEN
ENDING, COMMITTING, UNLOCKING = Stage.ENDING, Stage.COMMITTING, Stage.UNLOCKING
#: The events that bring an assigned queue to each stage.
EVENTS_TO_STAGE: dict[bool, dict[Stage | None, list[str]]] = {
    True: {
        None: [],
        LOCKING: ["mine"],
        WAITING: ["mine", "lock not given"],
        FINDING: ["mine", "lock given"],
        OPEN: ["mine", "lock given", "start found"],
        ENDING: ["mine", "lock given", "start found", "lock lost"],
        COMMITTING: ["mine", "lock given", "start found", "lock lost", "calls over"],
        UNLOCKING: ["mine", "lock given", "start found", "lock lost", "calls over", "committed"],
    },
    False: {
        None: [],
        FINDING: ["mine"],
        OPEN: ["mine", "start found"],
        COMMITTING: ["mine", "start found", "another's"],
    },
}
#: From (locking, stage, event) to the instructions and the next stage.
TABLE: dict[tuple[bool, Stage | None, str], tuple[list[Instruction], Stage | None]] = {
    (True, None, "mine"): ([LockQueues((Q,))], LOCKING),
    (True, LOCKING, "lock given"): ([FindStartOffset(Q)], FINDING),
    (True, LOCKING, "lock not given"): ([], WAITING),
    (True, WAITING, "mine"): ([LockQueues((Q,))], LOCKING),
    (True, WAITING, "another's"): ([UnlockQueue(Q)], UNLOCKING),
    (True, FINDING, "start found"): ([OpenQueue(Q, 7, 0, 0)], OPEN),
    (True, FINDING, "start unknown"): ([], WAITING),
    (True, FINDING, "gone"): ([], WAITING),
    (True, OPEN, "another's"): ([DropQueue(Q), AwaitRunningCalls(Q)], ENDING),
    (True, OPEN, "lock lost"): ([DropQueue(Q), AwaitRunningCalls(Q)], ENDING),
    (True, OPEN, "gone"): ([DropQueue(Q), AwaitRunningCalls(Q)], ENDING),
    (True, ENDING, "calls over"): ([CommitFinal(Q)], COMMITTING),
    (True, COMMITTING, "committed"): ([UnlockQueue(Q)], UNLOCKING),
    (True, COMMITTING, "commit failed"): ([UnlockQueue(Q)], UNLOCKING),
    (True, UNLOCKING, "unlocked"): ([], None),
    (False, None, "mine"): ([FindStartOffset(Q)], FINDING),
    (False, FINDING, "start found"): ([OpenQueue(Q, 7, 0, 0)], OPEN),
    (False, FINDING, "start unknown"): ([], None),
    (False, FINDING, "gone"): ([], None),
    (False, OPEN, "another's"): ([DropQueue(Q), CommitFinal(Q)], COMMITTING),
    (False, OPEN, "lock lost"): ([DropQueue(Q), CommitFinal(Q)], COMMITTING),
    (False, OPEN, "gone"): ([DropQueue(Q)], None),
    (False, COMMITTING, "committed"): ([], None),
    (False, COMMITTING, "commit failed"): ([], None),
}


def new_assignment(clock: FakeClock, *, locking: bool = True, clustering: bool = True) -> QueueAssignment:
    return QueueAssignment(clock, locking=locking, clustering=clustering, backoffs=QueueBackoffs(clock))


def at_stage(stage: Stage | None, *, locking: bool) -> QueueAssignment:
    found = new_assignment(FakeClock(), locking=locking)
    for event in EVENTS_TO_STAGE[locking][stage]:
        EVENTS[event](found)
    assert found.stage(Q) is stage
    return found


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    ("locking", "stage"), [(locking, stage) for locking, ways in EVENTS_TO_STAGE.items() for stage in ways]
)
def test_events_at_each_stage_follow_the_table(locking: bool, stage: Stage | None, event: str) -> None:
    """An event without an entry in the table is stale and changes nothing."""
    found = at_stage(stage, locking=locking)
    instructions = EVENTS[event](found)
    assert (instructions, found.stage(Q)) == TABLE.get((locking, stage, event), ([], stage))
    check_assignment(found)


@pytest.mark.parametrize("answer", ["lock given", "lock not given"])
def test_late_lock_answer_unlocks_the_queue(answer: str) -> None:
    """A refused lock is released too, as an earlier grant may have been lost."""
    found = at_stage(LOCKING, locking=True)
    assert EVENTS["another's"](found) == []
    assert EVENTS[answer](found) == [UnlockQueue(Q)]


@pytest.mark.parametrize("answer", ["start found", "start unknown", "gone"])
def test_late_start_offset_does_not_open_the_queue(answer: str) -> None:
    found = at_stage(FINDING, locking=True)
    assert EVENTS["another's"](found) == []
    assert EVENTS[answer](found) == [UnlockQueue(Q)]
    unlocked = at_stage(FINDING, locking=False)
    EVENTS["another's"](unlocked)
    assert EVENTS[answer](unlocked) == []
    assert unlocked.stage(Q) is None


def test_missing_queue_gets_no_final_commit() -> None:
    found = at_stage(OPEN, locking=True)
    EVENTS["gone"](found)
    assert EVENTS["calls over"](found) == [UnlockQueue(Q)]
    EVENTS["unlocked"](found)
    assert EVENTS["mine"](found) == [LockQueues((Q,))]


@pytest.mark.parametrize("stage", [ENDING, COMMITTING, UNLOCKING])
def test_queue_is_retaken_only_after_its_release_is_complete(stage: Stage) -> None:
    found = at_stage(stage, locking=True)
    assert EVENTS["mine"](found) == []
    assert not found.is_settled
    assert found.held == {Q}
    for event in ("calls over", "committed", "unlocked"):
        EVENTS[event](found)
    assert found.held == set()
    assert EVENTS["mine"](found) == [LockQueues((Q,))]


@pytest.mark.parametrize(
    ("clustering", "saved", "was", "start", "opened"),
    [
        (True, True, Position(9, 1, 5), (7, 1), OpenQueue(Q, 7, 1, 0)),  # all is committed: the broker's offset counts
        (True, False, Position(9, 1, 5), (7, 1), OpenQueue(Q, 9, 1, 5)),
        (True, False, Position(9, 1, 5), (9, 1), OpenQueue(Q, 9, 1, 5)),
        (True, False, Position(9, 1, 5), (12, 1), OpenQueue(Q, 12, 1, 0)),  # another member committed more meanwhile
        (True, False, Position(9, 1, 5), (3, 1), OpenQueue(Q, 9, 1, 5)),
        (True, False, Position(9, 1, 5), (2, 1), OpenQueue(Q, 2, 1, 0)),  # the group's offset was reset meanwhile
        (True, False, Position(9, 1, 5), (0, 2), OpenQueue(Q, 0, 2, 0)),  # the topic was deleted and created again
        (True, False, Position(0, 1, 5), (0, 2), OpenQueue(Q, 0, 2, 0)),
        (False, False, Position(9, 1, 5), (7, 1), OpenQueue(Q, 9, 1, 5)),
        (
            False,
            False,
            Position(9, 1, 5),
            (12, 1),
            OpenQueue(Q, 9, 1, 5),
        ),  # with broadcasting, 12 is the end of the queue
        (False, False, Position(9, 1, 5), (0, 2), OpenQueue(Q, 0, 2, 0)),
    ],
)
def test_start_offset_of_a_returning_queue(
    clustering: bool, saved: bool, was: Position, start: tuple[int, int], opened: OpenQueue
) -> None:
    found = new_assignment(FakeClock(), locking=False, clustering=clustering)
    found.rebalance_queues(rebalance_result(Q))
    found.start_found(Q, 3, 1)
    found.rebalance_queues(RebalanceResult({OTHER}, {OTHER}, set(), True))  # its broker is unavailable
    found.final_commit_done(Q, was, told=3, saved=saved)
    found.rebalance_queues(rebalance_result(Q, OTHER))
    assert found.start_found(Q, *start) == [opened]
    check_assignment(found)


def test_queue_back_from_another_member_uses_broker_offset() -> None:
    found = at_stage(COMMITTING, locking=False)
    EVENTS["commit failed"](found)
    EVENTS["another's"](found)
    EVENTS["mine"](found)
    assert found.start_found(Q, 7, 0) == [OpenQueue(Q, 7, 0, 0)]


@pytest.mark.parametrize("locking", [False, True])
def test_queues_of_unreached_brokers_delay_settling(locking: bool) -> None:
    found = new_assignment(FakeClock(), locking=locking)
    taken = found.rebalance_queues(rebalance_result(Q, OTHER, unreached=frozenset({OTHER})))
    assert taken == ([LockQueues((Q,))] if locking else [FindStartOffset(Q)])
    found.locked([Q], {Q})
    found.start_found(Q, 0, 0)
    assert not found.is_settled
    assert found.rebalance_queues(rebalance_result(Q, OTHER))


def test_queue_in_backoff_is_retried_and_blocks_no_other() -> None:
    clock = FakeClock()
    backoffs = QueueBackoffs(clock)
    found = QueueAssignment(clock, locking=False, clustering=True, backoffs=backoffs)
    found.rebalance_queues(rebalance_result(Q, OTHER))
    found.start_found(OTHER, 0, 0)
    backoffs.failed(Q)
    found.gone(Q)
    assert found.is_settled
    assert found.is_missing_some
    assert found.rebalance_queues(rebalance_result(Q, OTHER)) == []
    clock.advance(LONGEST_SECONDS)
    assert not found.is_settled
    assert found.rebalance_queues(rebalance_result(Q, OTHER)) == [FindStartOffset(Q)]


def test_broker_missing_in_routes_is_awaited_for_a_minute() -> None:
    clock = FakeClock()
    found = new_assignment(clock, locking=False)
    assert found.is_missing_some, "there is nothing"
    found.rebalance_queues(rebalance_result(Q, OTHER))
    found.start_found(Q, 0, 0)
    found.start_found(OTHER, 0, 0)
    assert not found.is_missing_some
    found.rebalance_queues(rebalance_result(Q))
    assert not found.is_missing_some, "it went to another member"
    found.rebalance_queues(RebalanceResult({OTHER}, {OTHER}, set(), True))
    found.final_commit_done(OTHER, Position(0), told=0, saved=True)
    found.rebalance_queues(rebalance_result(OTHER))
    found.start_found(OTHER, 0, 0)
    assert found.is_missing_some
    clock.advance(RETURN_SECONDS)
    assert not found.is_missing_some


def test_unstable_rebalance_is_not_settled() -> None:
    found = at_stage(OPEN, locking=True)
    assert found.is_settled
    found.rebalance_queues(rebalance_result(Q, is_stable=False))
    assert not found.is_settled
