"""Test rebalancing with real locks and random faults: lost answers, paused members and network failures.

The invariants: no call begins while another member has the lock; a queue is handed over only after its final commit
was tried; a new owner skips no message; and after a settled change each queue is open at exactly its assigned member.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raymq.actors.broker.core.groups.client_registry import SESSION_GRACE_SECONDS
from raymq.actors.broker.core.groups.rebalance_lock_manager import LEASE_SECONDS, RebalanceLockManager
from raymq.actors.protocol import MessageQueue
from raymq.actors.queue_allocation import average
from raymq.client.members.lock_table import LockGrant, LockTable
from raymq.client.push.rebalance import (
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
from tests.validation import check_invariants

QUEUES = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
#: The outcome of a request: success, the request is lost, or its answer is lost.
OUTCOMES = ("well", "request lost", "answer lost")
OUTCOME = st.sampled_from(OUTCOMES)
FAILS = st.sampled_from([None, FindStartOffset, CommitFinal, UnlockQueue, LockQueues])
STEPS = st.sampled_from([20, 1, 2, 3, 5, 8])
RELEASE_SECONDS = 30.0


@dataclass
class Link:
    """A member's connections to the brokers, as the member sees them."""

    is_open: bool = True


@dataclass
class Position:
    """The position of an open or dropped queue at a member."""

    commit_offset: int
    incarnation: int = 0
    epoch: int = 0


@dataclass(eq=False)
class PendingInstruction:
    """A pending instruction; `asked_at` and `grants` belong to a lock request that is under way."""

    instruction: Instruction
    since: float
    asked_at: float | None = None
    grants: dict[MessageQueue, LockGrant] | None = None


@dataclass(eq=False)
class Member:
    """One consumer with the real assignment and lock table; it carries out their instructions."""

    name: str
    assignment: QueueAssignment
    backoffs: QueueBackoffs
    locks: LockTable
    link: Link = field(default_factory=Link)
    open: dict[MessageQueue, Position] = field(default_factory=dict)
    dropped: dict[MessageQueue, Position] = field(default_factory=dict)
    #: The running call of each queue, with the position that the call advances.
    calls: dict[MessageQueue, Position] = field(default_factory=dict)
    pending: list[PendingInstruction] = field(default_factory=list)
    #: When each queue was dropped last.
    dropped_at: dict[MessageQueue, float] = field(default_factory=dict)
    #: The term of the lock under which each queue was opened.
    terms: dict[MessageQueue, int] = field(default_factory=dict)
    #: Dropped queues whose final commit was not tried yet.
    uncommitted: set[MessageQueue] = field(default_factory=set)
    paused: bool = False
    cut: bool = False
    #: Whether the brokers know the member; they forget it some time after its last connection ended.
    known: bool = True
    forget_at: float | None = None


class Group(RuleBasedStateMachine):
    """An ordered group, with locks. `Unordered` is the group without."""

    locking = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.brokers = RebalanceLockManager(self.clock)
        self.committed: dict[MessageQueue, int] = {}
        self.done = dict.fromkeys(QUEUES, 0)
        self.numbers = itertools.count()
        self.members: list[Member] = []
        self.dead: list[Member] = []
        #: Whether a member may hold a lock without knowing it, or without a way to unlock, until the lease ends.
        self.trouble = False
        #: Whether no lock request fails; then the group settles within seconds.
        self.calm = False
        self.join()
        self.join()

    @initialize(calm=st.booleans())
    def choose(self, calm: bool) -> None:
        self.calm = calm

    # -- brokers -------------------------------------------------------------------------------------------------

    def holder(self, queue: MessageQueue) -> str | None:
        return self.brokers.holder("g", *key(queue))

    def pass_time(self, seconds: float) -> None:
        until = self.clock() + seconds
        for member in sorted(
            (each for each in [*self.members, *self.dead] if each.known and each.forget_at is not None),
            key=lambda each: each.forget_at or 0.0,
        ):
            if member.forget_at is not None and member.forget_at <= until:
                self.clock.advance(max(0.0, member.forget_at - self.clock()))
                member.known = False
                self.brokers.forget(member.name)
        self.clock.advance(until - self.clock())

    def grants(
        self, member: Member, queues: tuple[MessageQueue, ...], asked_at: float
    ) -> dict[MessageQueue, LockGrant]:
        terms = self.brokers.lock("g", member.name, [key(queue) for queue in queues])
        return {queue: LockGrant(asked_at, terms[key(queue)], member.link) for queue in queues if key(queue) in terms}

    # -- members --------------------------------------------------------------------------------------------------

    def follow(self, member: Member, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case OpenQueue(queue, offset):
                    assert queue not in member.open
                    assert offset <= self.done[queue], "messages that nobody has done are skipped"
                    member.open[queue] = Position(offset)
                case DropQueue(queue):
                    member.dropped[queue] = member.open.pop(queue)
                    member.dropped_at[queue] = self.clock()
                    member.uncommitted.add(queue)
                case _:
                    member.pending.append(PendingInstruction(instruction, self.clock()))

    def work(self, member: Member, item: PendingInstruction, outcome: str) -> None:  # noqa: C901 - one case per instruction
        """Carry on with a pending instruction, whose request ends with the outcome."""
        if member.cut:
            outcome = "request lost"
        if isinstance(item.instruction, LockQueues | UnlockQueue):
            if self.calm:
                outcome = "well"
            self.trouble |= outcome != "well"
        match item.instruction:
            case LockQueues(queues):
                if item.asked_at is None:  # the next call gets the answer
                    item.asked_at = self.clock()
                    found = {} if outcome == "request lost" else self.grants(member, queues, item.asked_at)
                    item.grants = found if outcome == "well" else {}
                    return
                member.pending.remove(item)
                held = item.grants or {}
                for queue, grant in held.items():
                    member.locks.granted(queue, grant)
                    member.terms[queue] = grant.term
                self.follow(member, member.assignment.locked(queues, set(held)))
            case FindStartOffset(queue):
                member.pending.remove(item)
                if outcome == "well":
                    offset = self.committed.setdefault(queue, 0)
                    self.follow(member, member.assignment.start_found(queue, offset, 0))
                else:
                    self.follow(member, member.assignment.start_unknown(queue))
            case AwaitRunningCalls(queue):
                if queue not in member.calls or self.clock() - item.since >= RELEASE_SECONDS:
                    member.pending.remove(item)
                    self.follow(member, member.assignment.calls_finished(queue))
            case CommitFinal(queue):
                member.pending.remove(item)
                place = member.dropped.pop(queue)
                member.uncommitted.discard(queue)
                broker_offset = min(self.committed[queue], place.commit_offset)
                if outcome != "request lost":
                    self.commit(queue, place)
                saved = outcome == "well"
                self.follow(member, member.assignment.final_commit_done(queue, place, told=broker_offset, saved=saved))
            case UnlockQueue(queue):
                member.pending.remove(item)
                assert queue not in member.uncommitted, "it is handed on before its last commit was tried"
                waited = self.clock() - member.dropped_at.get(queue, 0.0) >= RELEASE_SECONDS
                assert waited or queue not in member.calls, "it is handed on while a call runs"
                member.locks.forget(queue)
                if outcome != "request lost":
                    self.brokers.unlock("g", member.name, [key(queue)])
                self.follow(member, member.assignment.unlocked(queue))

    def commit(self, queue: MessageQueue, place: Position) -> None:
        assert place.commit_offset <= self.done[queue]
        self.committed[queue] = max(self.committed[queue], place.commit_offset)

    def look(self, member: Member) -> None:
        """Do one rebalance round, unless the member is cut off or the last round is unfinished."""
        if member.cut or any(isinstance(item.instruction, LockQueues | FindStartOffset) for item in member.pending):
            return
        members = sorted(each.name for each in [*self.members, *self.dead] if each.known)
        mine = set(average(QUEUES, members, member.name))
        self.follow(
            member, member.assignment.rebalance_queues(RebalanceResult(mine, set(QUEUES), set(), is_stable=True))
        )

    def renew(self, member: Member, outcome: str) -> None:
        self.follow(member, member.assignment.locks_lost(member.locks.ended(member.open)))
        due = tuple(sorted(member.locks.due(member.open)))
        member.locks.tried(due)
        if not due or member.cut or outcome == "request lost":
            return
        grants = self.grants(member, due, self.clock())
        if outcome == "well":
            kept = {queue for queue, grant in grants.items() if member.locks.granted(queue, grant)}
            self.follow(member, member.assignment.locks_lost(set(due) - kept))

    def may_begin(self, member: Member, queue: MessageQueue) -> bool:
        return queue not in member.calls and (not self.locking or member.locks.may_begin(queue))

    def begin_call(self, member: Member, queue: MessageQueue) -> None:
        if self.may_begin(member, queue):
            if self.locking:
                assert self.holder(queue) in (None, member.name), "a call begins beside another's lock"
                if self.holder(queue) is not None:
                    term = self.brokers.lock("g", member.name, [key(queue)])[key(queue)]
                    assert term == member.terms[queue], "another may have had it since it was fetched"
            member.calls[queue] = member.open[queue]

    def end_call(self, member: Member, queue: MessageQueue) -> None:
        place = member.calls.pop(queue)
        place.commit_offset += 1
        self.done[queue] = max(self.done[queue], place.commit_offset)

    # -- rules ----------------------------------------------------------------------------------------------------

    def awake(self) -> list[Member]:
        return [member for member in self.members if not member.paused]

    @precondition(lambda self: len(self.members) < 3)
    @rule()
    def join(self) -> None:
        backoffs = QueueBackoffs(self.clock)
        machine = QueueAssignment(self.clock, locking=self.locking, clustering=True, backoffs=backoffs)
        self.members.append(Member(f"m{next(self.numbers)}", machine, backoffs, LockTable(self.clock)))

    @rule(
        which=st.integers(0, 2), looks=st.sampled_from([True, True, False]), steps=STEPS, fails=FAILS, outcome=OUTCOME
    )
    def goes_on(self, which: int, looks: bool, steps: int, fails: type[Instruction] | None, outcome: str) -> None:
        """Let a member work on some instructions; one kind of them may fail."""
        awake = self.awake()
        if not awake:
            return
        member = awake[which % len(awake)]
        if looks:
            self.look(member)
        for _ in range(steps):
            if member.pending:
                item = member.pending[0]
                self.work(member, item, outcome if type(item.instruction) is fails else "well")
                member.pending = member.pending[1:] + member.pending[:1]  # a waiting instruction blocks no other

    @precondition(lambda self: self.locking)
    @rule(which=st.integers(0, 2), outcome=OUTCOME)
    def renews(self, which: int, outcome: str) -> None:
        if awake := self.awake():
            self.renew(awake[which % len(awake)], outcome)

    @rule(which=st.integers(0, 8), ends=st.booleans())
    def calls(self, which: int, ends: bool) -> None:
        can = [(member, queue) for member in self.awake() for queue in sorted(member.open)]
        if can:
            member, queue = can[which % len(can)]
            self.begin_call(member, queue)
            if ends and queue in member.calls:
                self.end_call(member, queue)

    @rule(which=st.integers(0, 8))
    def call_ends(self, which: int) -> None:
        if running := [(member, queue) for member in self.awake() for queue in sorted(member.calls)]:
            self.end_call(*running[which % len(running)])

    @rule(which=st.integers(0, 8))
    def commits(self, which: int) -> None:
        can = [place for member in self.awake() if not member.cut for place in sorted(member.open.items(), key=first)]
        if can:
            self.commit(*can[which % len(can)])

    @rule(which=st.integers(0, 8))
    def broker_does_not_have_it(self, which: int) -> None:
        if can := [(member, queue) for member in self.awake() for queue in sorted(member.open)]:
            member, queue = can[which % len(can)]
            member.backoffs.failed(queue)
            self.follow(member, member.assignment.gone(queue))
            member.dropped.pop(queue, None)
            member.uncommitted.discard(queue)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, LEASE_SECONDS + 1.0]))
    def waits(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(which=st.integers(0, 2))
    def is_paused(self, which: int) -> None:
        self.members[which % len(self.members)].paused = True

    @rule()
    def all_go_on(self) -> None:
        for member in self.members:
            member.paused = False

    @precondition(lambda self: not self.calm)
    @rule(which=st.integers(0, 2), sees_it=st.booleans(), seconds=st.sampled_from([0.0, 1.0, 3.0]), back=st.booleans())
    def network_is_cut(self, which: int, sees_it: bool, seconds: float, back: bool) -> None:
        """Cut a member off; it is back after the seconds, or after `network_is_there_again`."""
        member = self.members[which % len(self.members)]
        if not member.cut:
            self.trouble = member.cut = True
            member.link.is_open = not sees_it
            member.forget_at = self.clock() + SESSION_GRACE_SECONDS
            self.pass_time(seconds)
            if back:
                self.connect(member)

    @rule(which=st.integers(0, 2))
    def network_is_there_again(self, which: int) -> None:
        if cut := [member for member in self.members if member.cut]:
            self.connect(cut[which % len(cut)])

    def connect(self, member: Member) -> None:
        member.link.is_open = False  # a new connection shows the member that the old one has ended
        member.link, member.cut, member.known, member.forget_at = Link(), False, True, None

    @precondition(lambda self: len(self.members) > 1 and not self.calm)
    @rule(which=st.integers(0, 2))
    def dies(self, which: int) -> None:
        member = self.members[which % len(self.members)]
        self.trouble = True
        self.members.remove(member)
        self.dead.append(member)
        if member.forget_at is None:
            member.forget_at = self.clock() + SESSION_GRACE_SECONDS

    @precondition(lambda self: len(self.members) > 1)
    @rule(which=st.integers(0, 2))
    def leaves(self, which: int) -> None:
        """Leave the group as a consumer at shutdown does, after its running calls have ended."""
        member = self.members[which % len(self.members)]
        if member.cut or member.paused:
            return
        for queue in list(member.calls):
            self.end_call(member, queue)
        for queue, place in [*member.open.items(), *member.dropped.items()]:
            self.commit(queue, place)
        self.brokers.leave("g", member.name)
        member.known = False
        self.members.remove(member)

    def teardown(self) -> None:
        self.settle()

    def settle(self) -> None:
        """Check that each queue gets its owner within 20 s; after trouble add one lease."""
        for member in self.members:
            member.paused = False
            if member.cut:
                self.connect(member)
        seconds = LEASE_SECONDS + 20.0 if self.trouble else 20.0
        until = self.clock() + seconds
        while self.clock() < until:
            for member in self.members:
                for queue in list(member.calls):
                    self.end_call(member, queue)
                if self.locking:
                    self.renew(member, "well")
                self.look(member)
                while member.pending:
                    self.work(member, member.pending[0], "well")
            self.pass_time(1.0)
        names = sorted(member.name for member in self.members)
        for member in self.members:
            mine = set(average(QUEUES, names, member.name))
            assert set(member.open) == mine, "a queue has no owner, or two"
            assert member.assignment.is_settled
            assert not member.uncommitted
            assert not member.dropped
            if self.locking:
                assert all(self.holder(queue) == member.name for queue in mine)

    @invariant()
    def agrees(self) -> None:
        check_invariants(self.brokers)
        for member in self.members:
            check_assignment(member.assignment)
            assert set(member.open) == member.assignment.at(Stage.OPEN)
            ways_out = member.assignment.at(Stage.ENDING, Stage.COMMITTING)
            assert member.uncommitted <= ways_out, "it is not ours any more, and its last commit was not tried"


class Unordered(Group):
    """A group without locks, in which two members may share a queue for a while."""

    locking = False


def first(item: tuple[MessageQueue, Position]) -> MessageQueue:
    return item[0]


def key(queue: MessageQueue) -> tuple[str, int]:
    """Return the lock's name with the broker, as one lock manager serves both brokers."""
    return f"{queue.topic}@{queue.broker}", queue.queue_id


@pytest.mark.parametrize("group", [Group, Unordered])
def test_rebalance_invariants_hold_on_generated_steps(group: type[Group]) -> None:
    run_state_machine_as_test(
        group,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("calm", [False, True])
@pytest.mark.parametrize("group", [Group, Unordered])
def test_rebalance_invariants_hold_on_long_random_walks(group: type[Group], calm: bool) -> None:
    """Do longer random walks than Hypothesis generates; a failure names its seed."""
    for seed in range(250):
        try:
            run_random_walk(group(), random.Random(seed), calm)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def run_random_walk(group: Group, rng: random.Random, calm: bool) -> None:
    group.choose(calm)
    for _ in range(80):
        which = rng.randrange(9)
        outcome, fails = rng.choice(OUTCOMES), rng.choice([None, FindStartOffset, CommitFinal, UnlockQueue, LockQueues])
        match rng.choices(range(10), [10, 3, 6, 3, 1, 3, 1, 1, 2, 1])[0]:
            case 0:
                group.goes_on(which, rng.random() < 0.7, rng.choice([1, 2, 4, 20]), fails, outcome)
            case 1 if group.locking:
                group.renews(which, "well" if rng.random() < 0.7 else outcome)
            case 2:
                group.calls(which, rng.random() < 0.7)
            case 3:
                rng.choice([group.call_ends, group.commits])(which)
            case 4:
                group.broker_does_not_have_it(which)
            case 5:
                group.waits(rng.choice([0.1, 0.5, 1.0, 2.0, 5.0, LEASE_SECONDS + 1.0]))
            case 6:
                group.is_paused(which)
            case 7:
                group.all_go_on()
            case 8 if not calm:
                group.network_is_cut(which, rng.random() < 0.5, rng.choice([0.0, 1.0, 3.0]), rng.random() < 0.5)
                group.network_is_there_again(which)
            case 9 if len(group.members) < 3:
                group.join()
            case _ if len(group.members) > 1 and rng.random() < 0.5:
                (group.leaves if calm else group.dies)(which)
        group.agrees()
    group.settle()
