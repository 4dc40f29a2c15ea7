"""Decide why a consumer group does not move, from facts that were gathered before.

No I/O.

Each rule looks at the facts and returns findings. The first rule that finds something gives the verdict; what the
others find is evidence. A rule never concludes anything from a value that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.member_commands import MemberStatus
from raymq.client.results import QueueProgress
from raymq.client.timestamps import format_duration

#: A listener call that runs for longer is reported as hanging, unless the caller says otherwise.
HANG_SECONDS: Final = 30.0
#: Dead letters that are older than this are not why the group does not move now.
RECENT_SECONDS: Final = 600.0
#: A group whose oldest unfinished message is younger keeps up.
_BEHIND_SECONDS: Final = 5.0
#: Pull consumers and Spark are no members; a commit of this time says that one of them runs.
_COMMIT_SECONDS: Final = 60.0
#: How many queues, messages or members one sentence names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class GroupDiagnosis:
    """Why a group does not move, or that it does.

    Attributes:
        verdict: one sentence.
        evidence: the facts behind it, and what else was found.
    """

    group: str
    verdict: str
    evidence: list[str]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The progress of the group in one queue at two moments.

    `before` is None if it was not known then.
    """

    queue: MessageQueue
    before: QueueProgress | None
    now: QueueProgress

    @property
    def consumed(self) -> int:
        """Return how many messages were committed between the two moments."""
        if self.before is None or self.before.committed_offset is None or self.now.committed_offset is None:
            return 0
        return self.now.committed_offset - self.before.committed_offset

    @property
    def arrived(self) -> int:
        """Return how many messages were stored between the two moments."""
        if self.before is None or self.before.max_offset is None or self.now.max_offset is None:
            return 0
        return self.now.max_offset - self.before.max_offset

    @property
    def moves(self) -> bool:
        """Return True if the group has committed something new."""
        first_commit = self.before is not None and self.before.committed_offset is None
        return self.consumed != 0 or (first_commit and self.now.committed_offset is not None)


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A connected member; `status` is None if it does not report what it does."""

    client_id: str
    status: MemberStatus | None = None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A subscribed topic.

    Attributes:
        filter: the expression of the subscription, "*" for all messages.
        allowed: False if an administrator forbids the group to read it.
        readable: False if the topic has no read permission.
        last_stored_age: seconds since its last message; None if it has none, or if that is not known.
        tags: the tags of its newest messages, None for a message without tag; None if they were not read.
        passing: how many of these pass the filter; None if that is not known.
    """

    filter: str = "*"
    allowed: bool = True
    readable: bool = True
    last_stored_age: float | None = None
    tags: Sequence[str | None] | None = None
    passing: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterFacts:
    """One of the newest dead letters."""

    message_id: str
    age: float
    reason: str


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts about a group that a diagnosis is made from.

    Attributes:
        seconds: the time between the two moments.
        pops: the members pop, so queues have no owners.
        broadcasts: each member keeps its own progress.
        unreachable: brokers that do not answer.
        differing: the brokers at which the members have different subscriptions.
        since_commit: seconds since the last commit; None if it is not known.
        retries: messages that wait for a retry; None if it is not known, as `dead_letters`.
        newest_dead: the newest dead letters, newest first.
    """

    group: str
    seconds: float
    members: Sequence[MemberFacts] = ()
    pops: bool = False
    broadcasts: bool = False
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    queues: Sequence[QueueFacts] = ()
    missing_topics: Sequence[str] = ()
    unreachable: Sequence[str] = ()
    differing: Sequence[str] = ()
    since_commit: float | None = None
    retries: int | None = None
    dead_letters: int | None = None
    newest_dead: Sequence[DeadLetterFacts] = ()
    hang_seconds: float = HANG_SECONDS

    @property
    def consumed_queues(self) -> list[QueueFacts]:
        """Return the queues of topics that members subscribe to; all, if no member is connected."""
        return [each for each in self.queues if each.now.subscribed is not False]

    @property
    def lag(self) -> int | None:
        """Return the known lag of these queues; None if none is known."""
        known = [each.now.lag for each in self.consumed_queues if each.now.lag is not None]
        return sum(known) if known else None

    @property
    def moves(self) -> bool:
        """Return True if the group has committed something new between the two moments."""
        return any(each.moves for each in self.queues)

    @property
    def is_abandoned(self) -> bool:
        """Return True if no member is connected, all brokers tell so, and nothing else commits."""
        return not (self.members or self.unreachable or self.moves)

    @property
    def is_behind(self) -> bool:
        """Return True if messages are left that are too old, or of unknown age."""
        left = [each.now.oldest_unfinished_age for each in self.consumed_queues if each.now.lag]
        return any(age is None or age > _BEHIND_SECONDS for age in left)

    @property
    def standing_queues(self) -> list[QueueFacts]:
        """Return the queues in which messages are left and nothing was committed.

        A message that was stored between the two moments does not count, and where other queues move, one does not
        count that may only have to wait for its turn.
        """
        least = self.hang_seconds if self.moves else self.seconds
        ages = ((each, each.now.oldest_unfinished_age) for each in self.consumed_queues if each.now.lag)
        return [each for each, age in ages if not each.moves and (age is None or age > least)]


@dataclass(frozen=True, slots=True)
class _Finding:
    sentence: str
    evidence: list[str] = field(default_factory=list)


_Rule = Callable[[GroupFacts], Iterable[_Finding]]


def diagnose(facts: GroupFacts) -> GroupDiagnosis:
    """Return the verdict of the first rule that finds something, and all that was found."""
    findings = [finding for rule in _RULES for finding in rule(facts)] or [_in_order(facts)]
    first = findings[0]
    others = [line for each in findings[1:] for line in (f"also: {each.sentence}", *each.evidence)]
    evidence = [*first.evidence, *others, *_figures(facts)]
    return GroupDiagnosis(facts.group, first.sentence, list(dict.fromkeys(evidence)))


def _broadcasting(facts: GroupFacts) -> Iterator[_Finding]:
    if facts.broadcasts:
        yield _Finding(
            "the group broadcasts: each member keeps its own progress, which brokers do not know",
            ["consumer.health of each member shows whether it consumes"],
        )


def _differing_subscriptions(facts: GroupFacts) -> Iterator[_Finding]:
    if facts.differing:
        yield _Finding(
            f"members of the group have different subscriptions (seen at {_names(facts.differing)}): each may miss "
            "messages of the others' topics",
            ["all members of a group need the same topics and filters, or a higher subscription_version"],
        )


def _unreachable_brokers(facts: GroupFacts) -> Iterator[_Finding]:
    if facts.unreachable:
        silent = [each.queue for each in facts.queues if each.queue.broker in facts.unreachable]
        yield _Finding(
            f"{_plural(len(facts.unreachable), 'broker')} not reachable: {_names(facts.unreachable)}; nothing is known "
            "about the group's queues there",
            [f"queues of it: {_queues(silent)}"] if silent else [],
        )


def _no_member(facts: GroupFacts) -> Iterator[_Finding]:
    lately = facts.since_commit is not None and facts.since_commit < _COMMIT_SECONDS
    if not facts.is_abandoned or (lately and not facts.standing_queues):
        return
    waiting = facts.lag
    if waiting is None:
        waits = "it has never committed an offset" if facts.queues else "it has no offset"
    else:
        waits = _waiting(waiting) if waiting else "no message waits"
    evidence = ["start a consumer of the group; pull consumers and Spark are not members"]
    if facts.since_commit is None:
        if waiting is not None:
            evidence.append("when the group last committed is not known")
    elif lately:
        evidence.append(f"the last commit was {format_duration(facts.since_commit)} ago")
    else:
        evidence.append("nothing has been committed lately")
    yield _Finding(f"no member of the group is connected; {waits}", evidence)


def _missing_topics(facts: GroupFacts) -> Iterator[_Finding]:
    for topic in facts.missing_topics:
        yield _Finding(
            f"topic {topic} does not exist; the group's members wait for it",
            [f"raymq topic create {topic} creates it; raymq topic list shows the names that exist"],
        )


def _forbidden(facts: GroupFacts) -> Iterator[_Finding]:
    for topic, each in facts.topics.items():
        if not each.allowed:
            yield _Finding(f"an administrator forbids the group to read topic {topic}")
        if not each.readable:
            yield _Finding(
                f"topic {topic} has no read permission", [f"raymq topic update {topic} --permission rw grants it"]
            )


def _paused(facts: GroupFacts) -> Iterator[_Finding]:
    paused = sorted(each.client_id for each in facts.members if each.status is not None and each.status.paused)
    owned = [each for each in facts.standing_queues if each.now.owner in paused]
    if owned or (paused and len(paused) == len(facts.members)):
        yield _Finding(
            f"{_plural(len(paused), 'member')} paused by the program: {_names(paused)}",
            [f"its queues: {_queues([each.queue for each in owned])}"] if owned else [],
        )


def _repeated_failures(facts: GroupFacts) -> Iterator[_Finding]:
    for member in facts.members:
        for each in () if member.status is None else member.status.repeated:
            yield _Finding(
                f"the listener fails again and again for message {each.message_id}, and its ordered queue "
                f"{_queue(each.queue)} waits for it",
                [
                    f"member {member.client_id} has tried offset {each.queue_offset} {each.tries} times",
                    f"the last failure: {each.failure}",
                ],
            )


def _hanging_calls(facts: GroupFacts) -> Iterator[_Finding]:
    for member in facts.members:
        calls = () if member.status is None else member.status.calls
        hanging = sorted((call for call in calls if call.seconds > facts.hang_seconds), key=lambda call: -call.seconds)
        if hanging:
            queues = sorted({call.queue for call in hanging})
            yield _Finding(
                f"the listener of member {member.client_id} has worked on messages of queue "
                f"{_queue(hanging[0].queue)} for {format_duration(hanging[0].seconds)}",
                [
                    f"its calls of more than {format_duration(facts.hang_seconds)}: {len(hanging)}, on messages of "
                    + _queues(queues),
                    "restart that process: its queues go to other members meanwhile",
                ],
            )
    silent = {each.client_id for each in facts.members if each.status is None}
    for queue in facts.consumed_queues:
        now = queue.now
        age = now.oldest_unfinished_age
        if now.owner in silent and now.in_flight and age is not None and age > facts.hang_seconds and not queue.moves:
            yield _Finding(
                f"member {now.owner} holds {now.in_flight:,} messages of queue {_queue(queue.queue)} and commits "
                "nothing",
                [
                    f"the oldest was stored {format_duration(age)} ago",
                    "it does not report its listener calls, so whether one hangs or fails is not known",
                ],
            )


def _ownerless_queues(facts: GroupFacts) -> Iterator[_Finding]:
    if not facts.members or facts.pops or facts.broadcasts:
        return
    lost = [
        each
        for each in facts.standing_queues
        if each.now.owner is None and not each.queue.topic.startswith(RETRY_PREFIX)
    ]
    if lost:
        yield _Finding(
            f"{_plural(len(lost), 'queue')} without an owner: {_queues([each.queue for each in lost])}",
            [
                f"{_waiting(sum(each.now.lag or 0 for each in lost))} there",
                "no connected member has fetched from it; a rebalance gives each queue an owner within 20 s",
            ],
        )


def _unsubscribed(facts: GroupFacts) -> Iterator[_Finding]:
    left: dict[str, int] = {}
    for each in facts.queues:
        if each.now.subscribed is False and each.now.lag:
            left[each.queue.topic] = left.get(each.queue.topic, 0) + each.now.lag
    for topic, lag in left.items():
        yield _Finding(
            f"no member subscribes to topic {topic}, in which {_waiting(lag)} for the group",
            [
                f"the members subscribe to {_names(sorted(facts.topics))}",
                f"raymq group forget {facts.group} {topic} removes the topic from the group",
            ],
        )


def _failing_messages(facts: GroupFacts) -> Iterator[_Finding]:
    recent = [each for each in facts.newest_dead if each.age < RECENT_SECONDS]
    named = [
        f"dead letter {each.message_id}, {format_duration(each.age)} ago" + (f": {each.reason}" if each.reason else "")
        for each in recent[:_NAMED]
    ]
    if facts.retries:
        waits = "waits for its" if facts.retries == 1 else "wait for their"
        yield _Finding(f"messages fail: {facts.retries:,} of them {waits} retry", named)
    elif recent:
        yield _Finding(
            f"messages fail for good: {_plural(facts.dead_letters or len(recent), 'dead letter')}, the newest "
            f"{format_duration(recent[0].age)} old",
            [
                *named,
                f"raymq dlq list {facts.group} shows them",
                f"after the repair raymq dlq redrive {facts.group} sends them to the group again",
            ],
        )


def _slow(facts: GroupFacts) -> Iterator[_Finding]:
    arriving, consuming = _rates(facts)
    if facts.moves and facts.is_behind and arriving > consuming:
        yield _Finding(
            f"consumers are slower than producers: {arriving:,.1f} messages/s arrive, {consuming:,.1f} are consumed",
            ["more members (up to the number of queues), more threads, a larger batch_size or more queues help"],
        )


def _catching_up(facts: GroupFacts) -> Iterator[_Finding]:
    arriving, consuming = _rates(facts)
    if facts.moves and facts.is_behind and facts.lag and consuming > arriving:
        left = format_duration(facts.lag / (consuming - arriving))
        yield _Finding(
            f"the group catches up: {arriving:,.1f} messages/s arrive, {consuming:,.1f} are consumed",
            [f"{facts.lag:,} messages are left, for {left} at this rate"],
        )


def _rates(facts: GroupFacts) -> tuple[float, float]:
    """Return how many messages arrive and are consumed per second."""
    queues, seconds = facts.consumed_queues, max(facts.seconds, 1e-3)
    return sum(each.arrived for each in queues) / seconds, sum(each.consumed for each in queues) / seconds


def _excluding_filters(facts: GroupFacts) -> Iterator[_Finding]:
    for topic, each in facts.topics.items():
        if each.passing == 0 and each.tags:
            seen = ", ".join(sorted({"(none)" if tag is None else tag for tag in each.tags})[: 2 * _NAMED])
            yield _Finding(
                f"the filter {each.filter!r} excludes all of the newest {len(each.tags)} messages of topic {topic}",
                [f"their tags: {seen}"],
            )


def _standing(facts: GroupFacts) -> Iterator[_Finding]:
    """Find queues in which messages are left and nothing moves, without another known reason."""
    standing = facts.standing_queues
    if not standing or facts.is_abandoned:
        return
    queues = {each.queue for each in standing}
    calls = [call for member in facts.members if member.status for call in member.status.calls if call.queue in queues]
    if calls:
        longest = max(calls, key=lambda call: call.seconds)
        by = next(each for each in facts.members if each.status and longest in each.status.calls)
        yield _Finding(
            f"the listener works: {_plural(len(calls), 'call')} running, the longest for "
            f"{format_duration(longest.seconds)}",
            [f"the longest is that of member {by.client_id}, on messages of queue {_queue(longest.queue)}"],
        )
        return
    yield _Finding(
        f"{_waiting(sum(each.now.lag or 0 for each in standing))} in {_queues(sorted(queues))}, and nothing was "
        f"committed there within {format_duration(facts.seconds)}; why is not known to the brokers",
        [
            _given_out(standing),
            "consumer.health and the log of raymq.consumer say more",
        ],
    )


def _given_out(queues: Sequence[QueueFacts]) -> str:
    counts = [each.now.in_flight for each in queues]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return "how many of them were given out is not known"
    return f"{sum(known):,} of them were given out"


def _in_order(facts: GroupFacts) -> _Finding:
    """Return the finding where no rule has found anything."""
    if facts.lag is None:
        return _Finding("the group has not committed an offset yet, so its lag is not known")
    if facts.lag or any(each.arrived for each in facts.consumed_queues):
        return _Finding("the group keeps up")
    quiet = [
        f"topic {topic} has had no message" + ("" if age is None else f" for {format_duration(age)}")
        for topic, age in ((topic, each.last_stored_age) for topic, each in facts.topics.items())
    ]
    return _Finding("the group has consumed everything, and nothing arrives", quiet)


_RULES: Final[tuple[_Rule, ...]] = (
    _broadcasting,
    _unreachable_brokers,
    _differing_subscriptions,
    _missing_topics,
    _no_member,
    _forbidden,
    _paused,
    _repeated_failures,
    _hanging_calls,
    _ownerless_queues,
    _slow,
    _failing_messages,
    _excluding_filters,
    _standing,
    _unsubscribed,
    _catching_up,
)


def _figures(facts: GroupFacts) -> Iterator[str]:
    """Yield the figures that belong to every diagnosis."""
    lag = facts.lag
    yield f"members: {len(facts.members)}; lag: {'not known' if lag is None else f'{lag:,}'}"
    ages = [each.now.oldest_unfinished_age for each in facts.consumed_queues]
    if oldest := max((age for age in ages if age is not None), default=0.0):
        yield f"the oldest unfinished message was stored {format_duration(oldest)} ago"
    if facts.dead_letters:
        yield f"dead letters: {facts.dead_letters:,}"


def _queue(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker}/{queue.queue_id}"


def _queues(queues: Sequence[MessageQueue]) -> str:
    return _names([_queue(each) for each in queues])


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _waiting(count: int) -> str:
    return f"{_plural(count, 'message')} {'waits' if count == 1 else 'wait'}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
