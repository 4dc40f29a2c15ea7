"""Which queues a push consumer has, and what it does to take one over and to let one go. No I/O, injected clock.

What happened goes in as a call of `Assignment`, what is to be done comes out as a list of instructions, to be begun in
their order. Who carries one out says with another call how that went, however it went.

    not ours -> LOCKING -> FINDING -> OPEN -> ENDING -> COMMITTING -> UNLOCKING -> not ours
                   |          |                                          ^
                   +----------+--> WAITING ------------------------------+

Only an ordered consumer has locks, and waits for the calls that run: without them a queue goes from not ours to
FINDING, and from OPEN to COMMITTING. A queue that is let go is taken again when nothing of that is left to do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

from raymq.actors.protocol import MessageQueue
from raymq.client.push.queue_backoff import QueueBackoffs

#: How long the routes are looked at every second for a broker that fell out of them: a restart takes 2 s.
RETURN_SECONDS: Final = 60.0


class Stage(enum.Enum):
    """How far a queue is. One that has none is not ours, and nothing is owed for it."""

    #: Its broker is asked for its lock.
    LOCKING = enum.auto()
    #: Its lock was asked for, and may be ours; the next round tries to go on, or gives the lock back.
    WAITING = enum.auto()
    #: Where the group starts in it is being found out.
    FINDING = enum.auto()
    #: It is fetched, and its messages go to the listener.
    OPEN = enum.auto()
    #: No call begins any more; those that run are waited for.
    ENDING = enum.auto()
    #: Its broker is told for the last time how far it is done.
    COMMITTING = enum.auto()
    #: Its lock is given back.
    UNLOCKING = enum.auto()


class Position(Protocol):
    """How far a queue is done that was let go: a call that still runs may move it on."""

    @property
    def commit_offset(self) -> int:
        """Everything below is finished."""

    @property
    def incarnation(self) -> int:
        """Of the topic in which the offset is meant."""

    @property
    def epoch(self) -> int:
        """The broker's recovery epoch under which that was fetched."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What a look at the members and the routes gave.

    Attributes:
        mine: the queues that should be ours.
        known: all queues that the routes name.
        unmet: those of brokers that do not know of this member yet: they must not be taken.
        settled: whether all members can be expected to see the same, so that nothing has to be looked at again soon.
    """

    mine: AbstractSet[MessageQueue]
    known: AbstractSet[MessageQueue]
    unmet: AbstractSet[MessageQueue]
    settled: bool


@dataclass(frozen=True, slots=True)
class Lock:
    """Ask the brokers for these locks; then `locked`."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class FindStart:
    """Find out where the group starts in a queue; then `start_found`, `start_unknown` or `gone`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Open:
    """Fetch a queue from `offset` on. `epoch` is that under which what is before was read, 0: not known."""

    queue: MessageQueue
    offset: int
    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Begin no call with a queue's messages any more, and fetch none; done when the instruction has been read."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class AwaitCalls:
    """Wait, for a bounded time, until no call with messages of a dropped queue runs; then `calls_over`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class CommitLast:
    """Tell its broker how far a dropped queue is done, or try to for a bounded time; then `committed_last`."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Unlock:
    """Give a queue's lock back, or try to for a bounded time; then `unlocked`."""

    queue: MessageQueue


Instruction = Lock | FindStart | Open | Drop | AwaitCalls | CommitLast | Unlock


class Assignment:
    """The queues of one consumer. Used on one thread.

    What is told of a queue that is not at the stage for it is heard and changes nothing: it is out of date.

    Args:
        clock: monotonic seconds.
        locking: whether a queue needs a lock: of an ordered consumer, unless it broadcasts.
        clustering: whether brokers keep the group's offsets; else a queue that comes back goes on where it was.
        backoffs: the queues that are left alone for a while, which are not tried.
    """

    def __init__(self, clock: Callable[[], float], *, locking: bool, clustering: bool, backoffs: QueueBackoffs) -> None:
        self._clock = clock
        self._locking = locking
        self._clustering = clustering
        self._backoffs = backoffs
        self._stages: dict[MessageQueue, Stage] = {}
        self._mine: AbstractSet[MessageQueue] = frozenset()
        self._settled = False
        #: Queues that were let go before their broker knew how far they were done, and what it was told before.
        self._unsaved: dict[MessageQueue, tuple[Position, int]] = {}
        #: Queues on their way out of which there is nothing to commit: their brokers do not have them any more.
        self._vanished: set[MessageQueue] = set()
        self._missed_until = clock()

    def stage(self, queue: MessageQueue) -> Stage | None:
        """How far a queue is; None: it is not ours."""
        return self._stages.get(queue)

    def at(self, *stages: Stage) -> set[MessageQueue]:
        """The queues that are at one of these stages."""
        return {queue for queue, stage in self._stages.items() if stage in stages}

    @property
    def held(self) -> set[MessageQueue]:
        """The queues whose locks may be ours."""
        return set(self._stages) if self._locking else set()

    @property
    def is_settled(self) -> bool:
        """Whether everybody saw the same in the last round, and all that is ours and can be had is open."""
        return self._settled and all(
            self._stages.get(queue) is Stage.OPEN or not self._backoffs.is_due(queue) for queue in self._mine
        )

    @property
    def is_missing_some(self) -> bool:
        """Whether there is a reason to look for queues often: there are none, or some went away and may come back."""
        return not self.at(Stage.OPEN) or self._clock() < self._missed_until

    # -- rounds ---------------------------------------------------------------------------------------------------

    def share_out(self, shares: Shares) -> list[Instruction]:
        """The queues were shared out: let go of what is not ours, and begin to take over what is."""
        self._mine, self._settled = frozenset(shares.mine), shares.settled
        for queue in shares.known - shares.mine:  # another member knows better by now
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
            for queue in sorted(self._mine - shares.unmet)
            if self._stages.get(queue, Stage.WAITING) is Stage.WAITING and self._backoffs.is_due(queue)
        ]
        if may_take and self._locking:
            self._stages.update(dict.fromkeys(may_take, Stage.LOCKING))
            return [*instructions, Lock(tuple(may_take))]
        return [*instructions, *(self._find_start(queue) for queue in may_take)]

    # -- taking over ----------------------------------------------------------------------------------------------

    def locked(self, asked: Collection[MessageQueue], held: AbstractSet[MessageQueue]) -> list[Instruction]:
        """Of the locks that were asked for, `held` are ours for certain; of the others an answer may be lost."""
        instructions: list[Instruction] = []
        for queue in asked:
            if self._stages.get(queue) is not Stage.LOCKING:
                continue
            if queue in held and queue in self._mine:
                instructions.append(self._find_start(queue))
            else:
                instructions += self._not_yet(queue)
        return instructions

    def start_found(self, queue: MessageQueue, offset: int, incarnation: int) -> list[Instruction]:
        """The group is at `offset` of this incarnation of the topic, as its broker says."""
        if self._stages.get(queue) is not Stage.FINDING:
            return []
        if queue not in self._mine:
            return self._not_yet(queue)
        epoch = 0
        unsaved = self._still_counts(queue, offset, incarnation)
        if unsaved is not None:
            done = unsaved.commit_offset
            offset = max(offset, done) if self._clustering else done
            if offset == done:  # it was come to by what was read then
                epoch = unsaved.epoch
        self._stages[queue] = Stage.OPEN
        return [Open(queue, offset, incarnation, epoch)]

    def _still_counts(self, queue: MessageQueue, offset: int, incarnation: int) -> Position | None:
        """How far a queue was done when it was let go, if its broker, where the group is at `offset`, was not told.

        It counts no more in another incarnation of the topic, and if the group was sent back meanwhile.
        """
        if queue not in self._unsaved:
            return None
        position, told = self._unsaved.pop(queue)
        was_sent_back = self._clustering and offset < told
        return None if position.incarnation < incarnation or was_sent_back else position

    def start_unknown(self, queue: MessageQueue) -> list[Instruction]:
        """It cannot be found out now. That is not "no offset": come back rather than start somewhere."""
        return self._not_yet(queue) if self._stages.get(queue) is Stage.FINDING else []

    def gone(self, queue: MessageQueue) -> list[Instruction]:
        """Its broker does not have the queue (any more): it is not ours, unless it comes back."""
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
        return [Drop(queue)]

    # -- letting go -----------------------------------------------------------------------------------------------

    def locks_lost(self, queues: Collection[MessageQueue]) -> list[Instruction]:
        """Somebody else may have these queues, or have had them: what was fetched must not be used."""
        return [
            instruction
            for queue in sorted(queues)
            if self._stages.get(queue) is Stage.OPEN
            for instruction in self._let_go(queue)
        ]

    def calls_over(self, queue: MessageQueue) -> list[Instruction]:
        """No call with a dropped queue's messages runs, or it was waited for long enough."""
        if self._stages.get(queue) is not Stage.ENDING:
            return []
        if queue in self._vanished:
            self._vanished.discard(queue)
            return self._unlock(queue)
        self._stages[queue] = Stage.COMMITTING
        return [CommitLast(queue)]

    def committed_last(self, queue: MessageQueue, position: Position, *, told: int, saved: bool) -> list[Instruction]:
        """The last commit was tried. What its broker could not be told counts if the queue comes back to us.

        Args:
            told: what the broker was told before that.
            saved: whether there is nothing that it should know.
        """
        if self._stages.get(queue) is not Stage.COMMITTING:
            return []
        if not (saved and self._clustering):
            self._unsaved[queue] = position, told
        return self._out(queue)

    def unlocked(self, queue: MessageQueue) -> list[Instruction]:
        """Its lock was given back, or its lease will end by itself."""
        if self._stages.get(queue) is Stage.UNLOCKING:
            del self._stages[queue]
        return []

    # -- steps ----------------------------------------------------------------------------------------------------

    def _find_start(self, queue: MessageQueue) -> FindStart:
        self._stages[queue] = Stage.FINDING
        return FindStart(queue)

    def _not_yet(self, queue: MessageQueue) -> list[Instruction]:
        """It is tried again in the next round, if it should be ours then."""
        if self._locking and queue in self._mine:
            self._stages[queue] = Stage.WAITING
            return []
        return self._out(queue)

    def _let_go(self, queue: MessageQueue) -> list[Instruction]:
        if self._locking:  # the next owner must not begin while a call of ours runs
            self._stages[queue] = Stage.ENDING
            return [Drop(queue), AwaitCalls(queue)]
        self._stages[queue] = Stage.COMMITTING
        return [Drop(queue), CommitLast(queue)]

    def _out(self, queue: MessageQueue) -> list[Instruction]:
        if self._locking:
            return self._unlock(queue)
        del self._stages[queue]
        return []

    def _unlock(self, queue: MessageQueue) -> list[Instruction]:
        self._stages[queue] = Stage.UNLOCKING
        return [Unlock(queue)]

    def _miss(self) -> None:
        self._missed_until = self._clock() + RETURN_SECONDS

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        of_locks = {Stage.LOCKING, Stage.WAITING, Stage.ENDING, Stage.UNLOCKING}
        assert self._locking or not of_locks & set(self._stages.values())
        assert self._vanished <= self.at(Stage.ENDING)
        assert not self._unsaved.keys() & self.at(Stage.OPEN), "what is open goes on from its own book"
