"""Decide which queues a push consumer has, and how it takes over and releases them.

No I/O, injected clock. Events are reported by method calls on `QueueAssignment`, which return a list of instructions to
begin in order. The caller reports the result of each instruction with another method call, whatever the result is.

    not ours -> LOCKING -> FINDING -> OPEN -> ENDING -> COMMITTING -> UNLOCKING -> not ours
                   |          |                                          ^
                   +----------+--> WAITING ------------------------------+

Only an ordered consumer has locks and waits for running calls. Without locks, a queue goes from not ours to FINDING,
and from OPEN to COMMITTING. A released queue is taken over again only after the last step of its release.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

from raymq.actors.backoff import Backoff
from raymq.actors.protocol import MessageQueue

#: How long the routes are checked every second for a broker that disappeared from them. A restart takes 2 s.
RETURN_SECONDS: Final = 60.0
#: The first and the longest pause of a queue that cannot be read.
FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 5.0


class Stage(enum.Enum):
    """The stage of a queue.

    A queue without a stage is not ours, and no step of its release is left.
    """

    #: The lock was requested from the queue's broker.
    LOCKING = enum.auto()
    #: The lock was requested and may be ours. The next round goes on or releases the lock.
    WAITING = enum.auto()
    #: The group's start offset in the queue is being looked up.
    FINDING = enum.auto()
    #: The queue is fetched, and its messages go to the listener.
    OPEN = enum.auto()
    #: No further call begins, and the running ones are awaited.
    ENDING = enum.auto()
    #: The last commit is being sent to the queue's broker.
    COMMITTING = enum.auto()
    #: The lock is being released.
    UNLOCKING = enum.auto()


class FinalPosition(Protocol):
    """The position of a released queue. A call that still runs may advance it."""

    @property
    def commit_offset(self) -> int:
        """Return the offset below which all messages are finished."""

    @property
    def incarnation(self) -> int:
        """Return the incarnation of the topic to which the offset applies."""

    @property
    def epoch(self) -> int:
        """Return the broker's recovery epoch under which the messages were fetched."""


@dataclass(frozen=True, slots=True)
class RebalanceResult:
    """The assignment by the present members and routes.

    Attributes:
        mine: the queues that are assigned to this member.
        known: all queues in the routes.
        unreached: the queues of brokers at which this member is not registered yet. They must not be taken over.
        is_stable: whether all members can be expected to see the same state, so that no early check is needed.
    """

    mine: AbstractSet[MessageQueue]
    known: AbstractSet[MessageQueue]
    unreached: AbstractSet[MessageQueue]
    is_stable: bool


@dataclass(frozen=True, slots=True)
class LockQueues:
    """Request these locks from the brokers, then call `locked`."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class FindStartOffset:
    """Find the group's start offset in a queue.

    Then call `start_found`, `start_unknown` or `gone`.
    """

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """Fetch a queue from `offset` on.

    `epoch` is the recovery epoch under which the messages before the offset were read; 0 means that it is not known.
    """

    queue: MessageQueue
    offset: int
    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DropQueue:
    """Begin no further call with a queue's messages and fetch none.

    The instruction is done when it has been read.
    """

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class AwaitRunningCalls:
    """Wait for the running calls of a dropped queue, for a bounded time.

    Then call `calls_finished`.
    """

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class CommitFinal:
    """Commit the position of a dropped queue, within a bounded time.

    Then call `final_commit_done`, also if the commit failed.
    """

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class UnlockQueue:
    """Release a queue's lock, within a bounded time.

    Then call `unlocked`, also if the release failed.
    """

    queue: MessageQueue


Instruction = LockQueues | FindStartOffset | OpenQueue | DropQueue | AwaitRunningCalls | CommitFinal | UnlockQueue


class QueueBackoffs:
    """The queues of one consumer that are skipped after failures.

    `clock` is monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._backoffs: dict[MessageQueue, Backoff] = {}
        self._not_before: dict[MessageQueue, float] = {}

    def failed(self, queue: MessageQueue) -> float:
        """Record that a queue could not be read, and return its pause in seconds."""
        backoff = self._backoffs.get(queue)
        if backoff is None:
            backoff = self._backoffs[queue] = Backoff(first=FIRST_SECONDS, cap=LONGEST_SECONDS)
        delay = backoff.next_delay()
        self._not_before[queue] = self._clock() + delay
        return delay

    def succeeded(self, queue: MessageQueue) -> None:
        """Forget the failures of a queue that was read or now belongs to another member."""
        self._backoffs.pop(queue, None)
        self._not_before.pop(queue, None)

    def queues(self) -> list[MessageQueue]:
        """Return the queues with recorded failures."""
        return list(self._backoffs)

    def is_due(self, queue: MessageQueue) -> bool:
        """Return True if a queue may be tried."""
        if not self._not_before:
            return True
        return self._not_before.get(queue, 0.0) <= self._clock()


class QueueAssignment:
    """The queues of one consumer. Used on one thread.

    A report about a queue that is not at the matching stage is outdated and has no effect.

    Args:
        clock: monotonic seconds.
        locking: whether a queue needs a lock, as for an ordered consumer unless it broadcasts.
        clustering: whether brokers keep the group's offsets. If not, a queue that comes back continues at its last
            position.
        backoffs: the queues that are skipped for a while after errors.
    """

    def __init__(self, clock: Callable[[], float], *, locking: bool, clustering: bool, backoffs: QueueBackoffs) -> None:
        self._clock = clock
        self._locking = locking
        self._clustering = clustering
        self._backoffs = backoffs
        self._stages: dict[MessageQueue, Stage] = {}
        self._mine: AbstractSet[MessageQueue] = frozenset()
        self._settled = False
        #: Queues that were released before their last commit reached the broker: the position, and the offset that the
        #: broker had.
        self._unsaved: dict[MessageQueue, tuple[FinalPosition, int]] = {}
        #: Queues being released that need no commit, since their brokers no longer have them.
        self._vanished: set[MessageQueue] = set()
        self._missed_until = clock()

    def stage(self, queue: MessageQueue) -> Stage | None:
        """Return a queue's stage, or None if the queue is not ours."""
        return self._stages.get(queue)

    def at(self, *stages: Stage) -> set[MessageQueue]:
        """Return the queues that are at one of these stages."""
        return {queue for queue, stage in self._stages.items() if stage in stages}

    @property
    def held(self) -> set[MessageQueue]:
        """Return the queues whose locks may be ours."""
        return set(self._stages) if self._locking else set()

    @property
    def is_settled(self) -> bool:
        """Return True if the last round was stable and all our available queues are open."""
        return self._settled and all(
            self._stages.get(queue) is Stage.OPEN or not self._backoffs.is_due(queue) for queue in self._mine
        )

    @property
    def is_missing_some(self) -> bool:
        """Return True if queues should be checked for often.

        That is so if no queue is open, or if some disappeared and may come back.
        """
        return not self.at(Stage.OPEN) or self._clock() < self._missed_until

    # -- rounds ---------------------------------------------------------------------------------------------------

    def rebalance_queues(self, shares: RebalanceResult) -> list[Instruction]:
        """Release the queues that are not ours, and begin to take over those that are."""
        self._mine, self._settled = frozenset(shares.mine), shares.is_stable
        for queue in shares.known - shares.mine:  # another member has a newer position by now
            self._unsaved.pop(queue, None)
        brokers = {queue.broker for queue in shares.mine | shares.known}
        instructions: list[Instruction] = []
        for queue, stage in sorted(self._stages.items(), key=lambda item: item[0]):
            if queue in self._mine:
                continue
            if stage is Stage.OPEN:
                if queue.broker not in brokers:
                    self._miss()
                instructions += self._let_go(queue)
            elif stage is Stage.WAITING:
                instructions += self._unlock(queue)
        may_take = [
            queue
            for queue in sorted(self._mine - shares.unreached)
            if self._stages.get(queue, Stage.WAITING) is Stage.WAITING and self._backoffs.is_due(queue)
        ]
        if may_take and self._locking:
            self._stages.update(dict.fromkeys(may_take, Stage.LOCKING))
            return [*instructions, LockQueues(tuple(may_take))]
        return [*instructions, *(self._find_start(queue) for queue in may_take)]

    # -- taking over ----------------------------------------------------------------------------------------------

    def locked(self, requested: Collection[MessageQueue], granted: AbstractSet[MessageQueue]) -> list[Instruction]:
        """Process the result of a lock request.

        The locks in `granted` are ours for certain. For the others, the response may have been lost.
        """
        instructions: list[Instruction] = []
        for queue in requested:
            if self._stages.get(queue) is not Stage.LOCKING:
                continue
            if queue in granted and queue in self._mine:
                instructions.append(self._find_start(queue))
            else:
                instructions += self._not_yet(queue)
        return instructions

    def start_found(self, queue: MessageQueue, offset: int, incarnation: int) -> list[Instruction]:
        """Open a queue at the group's offset in this incarnation of the topic."""
        if self._stages.get(queue) is not Stage.FINDING:
            return []
        if queue not in self._mine:
            return self._not_yet(queue)
        epoch = 0
        unsaved = self._still_counts(queue, offset, incarnation)
        if unsaved is not None:
            done = unsaved.commit_offset
            offset = max(offset, done) if self._clustering else done
            if offset == done:  # the offset was reached under that epoch
                epoch = unsaved.epoch
        self._stages[queue] = Stage.OPEN
        return [OpenQueue(queue, offset, incarnation, epoch)]

    def _still_counts(self, queue: MessageQueue, offset: int, incarnation: int) -> FinalPosition | None:
        """Return the uncommitted position of a released queue if it is still valid.

        The group is at `offset` according to the broker. The position is invalid in another incarnation of the topic,
        and if the group's offset was moved back meanwhile.
        """
        if queue not in self._unsaved:
            return None
        position, committed = self._unsaved.pop(queue)
        was_sent_back = self._clustering and offset < committed
        return None if position.incarnation < incarnation or was_sent_back else position

    def start_unknown(self, queue: MessageQueue) -> list[Instruction]:
        """Retry later, since the start offset cannot be found now.

        This differs from "no offset": the queue must not start at an arbitrary offset.
        """
        return self._not_yet(queue) if self._stages.get(queue) is Stage.FINDING else []

    def gone(self, queue: MessageQueue) -> list[Instruction]:
        """Release a queue that its broker does not have, or no longer has."""
        self._miss()
        self._unsaved.pop(queue, None)
        stage = self._stages.get(queue)
        if stage is Stage.FINDING:
            return self._not_yet(queue)
        if stage is not Stage.OPEN:
            return []
        if self._locking:
            self._vanished.add(queue)
            return self._let_go(queue)
        del self._stages[queue]
        return [DropQueue(queue)]

    # -- letting go -----------------------------------------------------------------------------------------------

    def locks_lost(self, queues: Collection[MessageQueue]) -> list[Instruction]:
        """Release queues whose locks were lost. Their fetched messages must not be used.

        Another member may have, or have had, these queues.
        """
        return [
            instruction
            for queue in sorted(queues)
            if self._stages.get(queue) is Stage.OPEN
            for instruction in self._let_go(queue)
        ]

    def calls_finished(self, queue: MessageQueue) -> list[Instruction]:
        """Continue the release of a queue whose running calls have ended.

        This also applies if they were awaited long enough.
        """
        if self._stages.get(queue) is not Stage.ENDING:
            return []
        if queue in self._vanished:
            self._vanished.discard(queue)
            return self._unlock(queue)
        self._stages[queue] = Stage.COMMITTING
        return [CommitFinal(queue)]

    def final_commit_done(
        self, queue: MessageQueue, position: FinalPosition, *, told: int, saved: bool
    ) -> list[Instruction]:
        """Continue the release of a queue after its last commit was tried.

        A position that did not reach the broker counts if the queue comes back to this member.

        Args:
            told: the offset that the broker had before.
            saved: whether the broker needs no further commit.
        """
        if self._stages.get(queue) is not Stage.COMMITTING:
            return []
        if not (saved and self._clustering):
            self._unsaved[queue] = position, told
        return self._out(queue)

    def unlocked(self, queue: MessageQueue) -> list[Instruction]:
        """End the release of a queue. Its lock was released, or its lease will expire."""
        if self._stages.get(queue) is Stage.UNLOCKING:
            del self._stages[queue]
        return []

    # -- steps ----------------------------------------------------------------------------------------------------

    def _find_start(self, queue: MessageQueue) -> FindStartOffset:
        self._stages[queue] = Stage.FINDING
        return FindStartOffset(queue)

    def _not_yet(self, queue: MessageQueue) -> list[Instruction]:
        """Retry a queue in the next round, if it is still ours then."""
        if self._locking and queue in self._mine:
            self._stages[queue] = Stage.WAITING
            return []
        return self._out(queue)

    def _let_go(self, queue: MessageQueue) -> list[Instruction]:
        if self._locking:  # the next owner must not begin while a call of this member runs
            self._stages[queue] = Stage.ENDING
            return [DropQueue(queue), AwaitRunningCalls(queue)]
        self._stages[queue] = Stage.COMMITTING
        return [DropQueue(queue), CommitFinal(queue)]

    def _out(self, queue: MessageQueue) -> list[Instruction]:
        if self._locking:
            return self._unlock(queue)
        del self._stages[queue]
        return []

    def _unlock(self, queue: MessageQueue) -> list[Instruction]:
        self._stages[queue] = Stage.UNLOCKING
        return [UnlockQueue(queue)]

    def _miss(self) -> None:
        self._missed_until = self._clock() + RETURN_SECONDS
