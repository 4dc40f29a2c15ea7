"""What a push consumer does to take a queue over and to let it go: each stage and each event, as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client.push.queue_assignment import (
    RETURN_SECONDS,
    AwaitRunningCalls,
    CommitFinal,
    DropQueue,
    FindStartOffset,
    Instruction,
    LockQueues,
    OpenQueue,
    QueueAssignment,
    RebalanceResult,
    Stage,
    UnlockQueue,
)
from raymq.client.push.queue_backoff import LONGEST_SECONDS, QueueBackoffs
from tests.unit.actors.clock import FakeClock

Q, OTHER = MessageQueue("t", "b", 0), MessageQueue("t", "c", 1)
Event = Callable[[QueueAssignment], list[Instruction]]


@dataclass(frozen=True)
class Place:
    """A position, as a queue that is let go has it."""

    commit_offset: int
    incarnation: int = 0
    epoch: int = 0


def shares(
    *mine: MessageQueue, unreached: frozenset[MessageQueue] = frozenset(), is_stable: bool = True
) -> RebalanceResult:
    return RebalanceResult(set(mine), {Q, OTHER}, unreached, is_stable)


EVENTS: dict[str, Event] = {
    "mine": lambda each: each.rebalance_queues(shares(Q)),
    "another's": lambda each: each.rebalance_queues(shares()),
    "lock given": lambda each: each.locked([Q], {Q}),
    "lock not given": lambda each: each.locked([Q], set()),
    "start found": lambda each: each.start_found(Q, 7, 0),
    "start unknown": lambda each: each.start_unknown(Q),
    "gone": lambda each: each.gone(Q),
    "lock lost": lambda each: each.locks_lost({Q}),
    "calls over": lambda each: each.calls_finished(Q),
    "committed": lambda each: each.final_commit_done(Q, Place(9), told=5, saved=True),
    "commit failed": lambda each: each.final_commit_done(Q, Place(9), told=5, saved=False),
    "unlocked": lambda each: each.unlocked(Q),
}
LOCKING, WAITING, FINDING, OPEN = Stage.LOCKING, Stage.WAITING, Stage.FINDING, Stage.OPEN
ENDING, COMMITTING, UNLOCKING = Stage.ENDING, Stage.COMMITTING, Stage.UNLOCKING
#: How a queue that is wanted comes to a stage.
WAYS: dict[bool, dict[Stage | None, list[str]]] = {
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
#: By whether there are locks, the stage, and the event: what is done, and the stage after it.
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


def assignment(clock: FakeClock, *, locking: bool = True, clustering: bool = True) -> QueueAssignment:
    return QueueAssignment(clock, locking=locking, clustering=clustering, backoffs=QueueBackoffs(clock))


def at_stage(stage: Stage | None, *, locking: bool) -> QueueAssignment:
    found = assignment(FakeClock(), locking=locking)
    for event in WAYS[locking][stage]:
        EVENTS[event](found)
    assert found.stage(Q) is stage
    return found


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("locking", "stage"), [(locking, stage) for locking, ways in WAYS.items() for stage in ways])
def test_what_follows_from_each_event_at_each_stage(locking: bool, stage: Stage | None, event: str) -> None:
    """What the table does not name is out of date, and changes nothing."""
    found = at_stage(stage, locking=locking)
    instructions = EVENTS[event](found)
    assert (instructions, found.stage(Q)) == TABLE.get((locking, stage, event), ([], stage))
    found.validate()


@pytest.mark.parametrize("answer", ["lock given", "lock not given"])
def test_a_lock_that_came_too_late_is_given_back(answer: str) -> None:
    """Also one that was refused, as far as is known: an answer may be lost, and the next owner waited for a lease."""
    found = at_stage(LOCKING, locking=True)
    assert EVENTS["another's"](found) == []
    assert EVENTS[answer](found) == [UnlockQueue(Q)]


@pytest.mark.parametrize("answer", ["start found", "start unknown", "gone"])
def test_a_queue_whose_start_came_too_late_is_not_opened(answer: str) -> None:
    found = at_stage(FINDING, locking=True)
    assert EVENTS["another's"](found) == []
    assert EVENTS[answer](found) == [UnlockQueue(Q)]
    unlocked = at_stage(FINDING, locking=False)
    EVENTS["another's"](unlocked)
    assert EVENTS[answer](unlocked) == []
    assert unlocked.stage(Q) is None


def test_of_a_queue_that_its_broker_does_not_have_nothing_is_committed() -> None:
    found = at_stage(OPEN, locking=True)
    EVENTS["gone"](found)
    assert EVENTS["calls over"](found) == [UnlockQueue(Q)]
    EVENTS["unlocked"](found)
    assert EVENTS["mine"](found) == [LockQueues((Q,))]


@pytest.mark.parametrize("stage", [ENDING, COMMITTING, UNLOCKING])
def test_a_queue_that_is_let_go_comes_back_when_nothing_is_left_to_do(stage: Stage) -> None:
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
        (True, True, Place(9, 1, 5), (7, 1), OpenQueue(Q, 7, 1, 0)),  # its broker knows it all: its word counts
        (True, False, Place(9, 1, 5), (7, 1), OpenQueue(Q, 9, 1, 5)),
        (True, False, Place(9, 1, 5), (9, 1), OpenQueue(Q, 9, 1, 5)),
        (True, False, Place(9, 1, 5), (12, 1), OpenQueue(Q, 12, 1, 0)),  # another member came further meanwhile
        (True, False, Place(9, 1, 5), (3, 1), OpenQueue(Q, 9, 1, 5)),
        (True, False, Place(9, 1, 5), (2, 1), OpenQueue(Q, 2, 1, 0)),  # the group was sent back meanwhile
        (True, False, Place(9, 1, 5), (0, 2), OpenQueue(Q, 0, 2, 0)),  # the topic was deleted and made anew
        (True, False, Place(0, 1, 5), (0, 2), OpenQueue(Q, 0, 2, 0)),
        (False, False, Place(9, 1, 5), (7, 1), OpenQueue(Q, 9, 1, 5)),
        (False, False, Place(9, 1, 5), (12, 1), OpenQueue(Q, 9, 1, 5)),  # the end of the queue, when broadcasting
        (False, False, Place(9, 1, 5), (0, 2), OpenQueue(Q, 0, 2, 0)),
    ],
)
def test_where_a_queue_goes_on_that_comes_back(
    clustering: bool, saved: bool, was: Place, start: tuple[int, int], opened: OpenQueue
) -> None:
    found = assignment(FakeClock(), locking=False, clustering=clustering)
    found.rebalance_queues(shares(Q))
    found.start_found(Q, 3, 1)
    found.rebalance_queues(RebalanceResult({OTHER}, {OTHER}, set(), True))  # its broker is away
    found.final_commit_done(Q, was, told=3, saved=saved)
    found.rebalance_queues(shares(Q, OTHER))
    assert found.start_found(Q, *start) == [opened]
    found.validate()


def test_what_another_member_had_meanwhile_goes_on_where_the_broker_says() -> None:
    found = at_stage(COMMITTING, locking=False)
    EVENTS["commit failed"](found)
    EVENTS["another's"](found)
    EVENTS["mine"](found)
    assert found.start_found(Q, 7, 0) == [OpenQueue(Q, 7, 0, 0)]


@pytest.mark.parametrize("locking", [False, True])
def test_queues_of_brokers_that_do_not_know_the_member_are_waited_for(locking: bool) -> None:
    found = assignment(FakeClock(), locking=locking)
    taken = found.rebalance_queues(shares(Q, OTHER, unreached=frozenset({OTHER})))
    assert taken == ([LockQueues((Q,))] if locking else [FindStartOffset(Q)])
    found.locked([Q], {Q})
    found.start_found(Q, 0, 0)
    assert not found.is_settled
    assert found.rebalance_queues(shares(Q, OTHER))


def test_a_queue_that_is_left_alone_holds_up_nothing_and_is_tried_again() -> None:
    clock = FakeClock()
    backoffs = QueueBackoffs(clock)
    found = QueueAssignment(clock, locking=False, clustering=True, backoffs=backoffs)
    found.rebalance_queues(shares(Q, OTHER))
    found.start_found(OTHER, 0, 0)
    backoffs.failed(Q)
    found.gone(Q)
    assert found.is_settled
    assert found.is_missing_some
    assert found.rebalance_queues(shares(Q, OTHER)) == []
    clock.advance(LONGEST_SECONDS)
    assert not found.is_settled
    assert found.rebalance_queues(shares(Q, OTHER)) == [FindStartOffset(Q)]


def test_a_broker_that_fell_out_of_the_routes_is_looked_for_during_a_minute() -> None:
    clock = FakeClock()
    found = assignment(clock, locking=False)
    assert found.is_missing_some, "there is nothing"
    found.rebalance_queues(shares(Q, OTHER))
    found.start_found(Q, 0, 0)
    found.start_found(OTHER, 0, 0)
    assert not found.is_missing_some
    found.rebalance_queues(shares(Q))
    assert not found.is_missing_some, "it went to another member"
    found.rebalance_queues(RebalanceResult({OTHER}, {OTHER}, set(), True))
    found.final_commit_done(OTHER, Place(0), told=0, saved=True)
    found.rebalance_queues(shares(OTHER))
    found.start_found(OTHER, 0, 0)
    assert found.is_missing_some
    clock.advance(RETURN_SECONDS)
    assert not found.is_missing_some


def test_it_is_not_settled_while_others_see_something_else() -> None:
    found = at_stage(OPEN, locking=True)
    assert found.is_settled
    found.rebalance_queues(shares(Q, is_stable=False))
    assert not found.is_settled
