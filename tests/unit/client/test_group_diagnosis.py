"""Test which verdict follows from which facts about a consumer group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.member_commands import CallStatus, MemberStatus, RepeatedMessage
from raymq.client import QueueProgress
from raymq.client.admin.group_diagnosis import (
    DeadLetterFacts,
    GroupFacts,
    MemberFacts,
    QueueFacts,
    TopicFacts,
    diagnose,
)

QUEUE = MessageQueue("orders", "broker-a", 0)
UNKNOWN = QueueProgress(None, None, None, None)


def progress(committed: int | None, end: int, owner: str | None = "m1", **options: Any) -> QueueProgress:
    lag = None if committed is None else end - committed
    fields = {"subscribed": True, "in_flight": 0, "ready": lag, "oldest_unfinished_age": 0.0 if not lag else 60.0}
    return QueueProgress(committed, end, lag, owner, **{**fields, **options})


def queue(before: tuple[int | None, int], now: tuple[int | None, int], **options: Any) -> QueueFacts:
    return QueueFacts(QUEUE, progress(*before, **options), progress(*now, **options))


MEMBER = MemberFacts("m1", MemberStatus())
SILENT = MemberFacts("m1")
DONE, WAITING = queue((5, 5), (5, 5)), queue((5, 9), (5, 9))
TOPICS = {"orders": TopicFacts(last_stored_age=120.0)}
FACTS = GroupFacts("g", 2.0, [MEMBER], topics=TOPICS, queues=[DONE], retries=0, dead_letters=0)
CALL = CallStatus(QUEUE, 40.0)
REPEATED = RepeatedMessage(QUEUE, 5, "AB", 7, "ValueError: no such account")

OTHER = MessageQueue("orders", "broker-b", 0)
MOVES = QueueFacts(OTHER, progress(5, 9, "m2"), progress(8, 9, "m2"))

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("nothing arrives", {}, "consumed everything, and nothing arrives", "orders has had no message for 2 min"),
    ("keeps up", {"queues": [queue((5, 5), (9, 9))]}, "the group keeps up", "lag: 0"),
    ("never committed", {"queues": [queue((None, 0), (None, 0))]}, "has not committed an offset yet", "not known"),
    (
        "no member",
        {"members": [], "queues": [WAITING], "since_commit": 900.0},
        "no member of the group is connected; 4",
        "nothing has been committed lately",
    ),
    (
        "no member, last commit unknown",
        {"members": [], "queues": [WAITING]},
        "no member of the group is connected; 4",
        "when the group last committed is not known",
    ),
    (
        "pull consumer",
        {"members": [], "queues": [queue((5, 9), (7, 9))]},
        "the group catches up: 0.0",
        "2 messages are left",
    ),
    (
        "no member since a moment",
        {"members": [], "queues": [WAITING], "since_commit": 3.0},
        "no member of the group is connected; 4 messages wait",
        "the last commit was 3 s ago",
    ),
    ("committed lately", {"members": [], "queues": [DONE], "since_commit": 3.0}, "and nothing arrives", ""),
    (
        "broker away",
        {"unreachable": ["broker-a"], "queues": [QueueFacts(QUEUE, UNKNOWN, UNKNOWN)]},
        "1 broker not reachable: broker-a",
        "orders broker-a/0",
    ),
    ("broker away, no member", {"unreachable": ["broker-a"], "members": []}, "1 broker not reachable", ""),
    ("missing topic", {"missing_topics": ["bills"]}, "topic bills does not exist", "raymq topic create bills"),
    (
        "forbidden",
        {"topics": {"orders": TopicFacts(allowed=False)}, "queues": [WAITING]},
        "forbids the group to read topic orders",
        "",
    ),
    (
        "unreadable",
        {"topics": {"orders": TopicFacts(readable=False)}, "queues": [WAITING]},
        "orders has no read permission",
        "--permission rw",
    ),
    (
        "paused",
        {"members": [MemberFacts("m1", MemberStatus(paused=True))], "queues": [WAITING]},
        "1 member paused by the program: m1",
        "orders broker-a/0",
    ),
    (
        "repeats",
        {"members": [MemberFacts("m1", MemberStatus(repeated=[REPEATED]))], "queues": [WAITING]},
        "again and again for message AB",
        "ValueError: no such account",
    ),
    (
        "hangs",
        {"members": [MemberFacts("m1", MemberStatus([CALL]))], "queues": [WAITING]},
        "member m1 has worked on messages of queue orders broker-a/0 for 40 s",
        "",
    ),
    (
        "hangs before the first commit",
        {"members": [MemberFacts("m1", MemberStatus([CALL]))], "queues": [queue((None, 9), (None, 9))]},
        "listener of member m1 has worked",
        "",
    ),
    (
        "works",
        {"members": [MemberFacts("m1", MemberStatus([replace(CALL, seconds=9.0)]))], "queues": [WAITING]},
        "the listener works: 1 call running, the longest for 9 s",
        "",
    ),
    (
        "silent member",
        {"members": [SILENT], "queues": [queue((5, 9), (5, 9), in_flight=4)]},
        "member m1 holds 4 messages of queue orders broker-a/0 and commits nothing",
        "is not known",
    ),
    (
        "silent and quick",
        {"members": [SILENT], "queues": [queue((5, 9), (5, 9), in_flight=4, oldest_unfinished_age=3.0)]},
        "why is not known to the brokers",
        "4 of them were given out",
    ),
    (
        "silent, and what was given out is not known",
        {"members": [SILENT], "queues": [queue((5, 9), (5, 9), in_flight=None)]},
        "why is not known to the brokers",
        "how many of them were given out is not known",
    ),
    (
        "no owner",
        {"queues": [queue((5, 9), (5, 9), owner=None)]},
        "1 queue without an owner: orders broker-a/0",
        "4 messages wait there",
    ),
    ("pops without owners", {"pops": True, "queues": [queue((5, 9), (5, 9), owner=None)]}, "why is not known", ""),
    (
        "hangs on several queues",
        {"members": [MemberFacts("m1", MemberStatus([CALL, CallStatus(OTHER, 50.0)]))], "queues": [WAITING]},
        "member m1 has worked on messages of queue orders broker-b/0 for 50 s",
        "its calls of more than 30 s: 2, on messages of orders broker-a/0, orders broker-b/0",
    ),
    ("one retry", {"retries": 1}, "messages fail: 1 of them waits for its retry", ""),
    ("retries", {"retries": 3}, "messages fail: 3 of them wait for their retry", ""),
    (
        "dead letters",
        {"dead_letters": 2, "newest_dead": [DeadLetterFacts("CD", 5.0, "KeyError: 'x'")]},
        "messages fail for good: 2 dead letters",
        "dead letter CD, 5 s ago: KeyError: 'x'",
    ),
    (
        "old dead letters",
        {"dead_letters": 2, "newest_dead": [DeadLetterFacts("CD", 9e4, "")]},
        "and nothing arrives",
        "dead letters: 2",
    ),
    (
        "too slow",
        {"queues": [queue((5, 50), (9, 90))]},
        "slower than producers: 20.0 messages/s arrive, 2.0 are consumed",
        "more members",
    ),
    ("catches up", {"queues": [queue((5, 90), (45, 90))]}, "the group catches up", "45 messages are left, for 2.25 s"),
    (
        "filter",
        {"topics": {"orders": TopicFacts("paid", tags=["new", None, "new"], passing=0)}},
        "'paid' excludes all of the newest 3 messages of topic orders",
        "(none), new",
    ),
    ("filter passes", {"topics": {"orders": TopicFacts("paid", tags=["paid"], passing=1)}}, "nothing arrives", ""),
    (
        "unsubscribed",
        {"queues": [queue((5, 9), (5, 9), subscribed=False)]},
        "no member subscribes to topic orders, in which 4",
        "raymq group forget g orders",
    ),
    ("broadcasts", {"broadcasts": True, "queues": []}, "the group broadcasts", "consumer.health"),
    (
        "differing",
        {"differing": ["broker-a", "broker-b"]},
        "different subscriptions (seen at broker-a, broker-b)",
        "subscription_version",
    ),
    ("young", {"queues": [queue((5, 9), (7, 11), oldest_unfinished_age=1.0)]}, "the group keeps up", "lag: 4"),
    ("just arrived", {"queues": [queue((5, 5), (5, 6), oldest_unfinished_age=0.5)]}, "the group keeps up", "lag: 1"),
    (
        "one queue without an owner",
        {"queues": [queue((5, 9), (5, 9), owner=None), MOVES]},
        "1 queue without an owner: orders broker-a/0",
        "4 messages wait there",
    ),
    ("one queue stands", {"queues": [WAITING, MOVES]}, "4 messages wait in orders broker-a/0, and nothing was", ""),
    (
        "one queue is slow",
        {"queues": [queue((5, 9), (5, 9), oldest_unfinished_age=20.0), MOVES]},
        "the group catches up",
        "",
    ),
    (
        "stands",
        {"queues": [WAITING]},
        "4 messages wait in orders broker-a/0, and nothing was committed there within 2 s",
        "",
    ),
]


@pytest.mark.parametrize(("changes", "verdict", "evidence"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_verdict_follows_from_facts(changes: dict[str, Any], verdict: str, evidence: str) -> None:
    found = diagnose(replace(FACTS, **changes))
    assert verdict in found.verdict
    assert evidence in "\n".join(found.evidence)


def test_other_findings_are_evidence() -> None:
    found = diagnose(replace(FACTS, missing_topics=["bills"], retries=3))
    assert "bills" in found.verdict
    assert "also: messages fail: 3 of them wait for their retry" in found.evidence
