"""Test `raymq group why` and `group members` with real members, brokers and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    GroupNotFound,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from tests.integration.conftest import Services
from tests.integration.shell import Shell
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raymq.client.admin.group_facts._BETWEEN_SECONDS", 0.2)


def send(mq: Connection, count: int = 1, tags: str | None = None) -> list[str]:
    with Producer(mq, "p") as producer:
        return [producer.send(Message("t", b"%d" % n, tags=tags), queue=QUEUE).message_id for n in range(count)]


def until_verdict(shell: Shell, text: str, *options: str) -> dict[str, Any]:
    """Return the diagnosis of group g as soon as its verdict contains a text."""
    found: dict[str, Any] = {}

    def matches() -> bool:
        found.update(shell.json("group", "why", "g", *options))
        return text in found["verdict"]

    poll_until(matches, 20, found.get("verdict", text))
    assert found["group"] == "g"
    return found


def consumer(mq: Connection, listener: Callable[[Any], Any], **options: Any) -> PushConsumer:
    return PushConsumer(mq, "g", options.pop("subscriptions", {"t": "*"}), listener, **options)


def test_group_without_members(shell: Shell, mq: Connection, admin: Admin) -> None:
    send(mq, 3)
    with PullConsumer(mq, "g") as pull:
        pull.commit(QUEUE, 1)
    # A pull consumer commits without being a member: its commit of a moment ago says that something consumes.
    assert "2 messages wait" in shell.json("group", "why", "g")["verdict"]
    with pytest.raises(GroupNotFound):
        admin.explain_group("none-such")
    assert "g:" in shell.shown("group", "why", "g")
    assert shell.json("group", "members", "g") == []


def test_group_that_keeps_up(shell: Shell, mq: Connection, admin: Admin) -> None:
    send(mq, 2)
    with consumer(mq, lambda _: ConsumeResult.SUCCESS):
        until_verdict(shell, "consumed everything, and nothing arrives")
        (member,) = shell.json("group", "members", "g")
        assert {"topic": "t", "broker": "broker-a", "queue_id": 0} in member["queues"]
        assert (member["paused"], member["calls"], member["longest_call"]) == (False, 0, 0.0)
        assert "longest_call" in shell.shown("group", "members", "g")


@pytest.mark.parametrize("mode", ["queue", "pop"])
def test_hanging_listener_is_named(shell: Shell, mq: Connection, admin: Admin, mode: str) -> None:
    send(mq)
    may_end = threading.Event()

    def hang(_: object) -> ConsumeResult:
        may_end.wait(30)
        return ConsumeResult.SUCCESS

    with consumer(mq, hang, mode=mode):
        try:
            found = until_verdict(shell, "has worked on messages of queue t broker-a/0", "--hang-after", "0.1")
            (member,) = admin.group_members("g")
            assert member.client_id in found["verdict"]
            assert member.calls == 1
        finally:
            may_end.set()


def test_ordered_failure_is_named(shell: Shell, mq: Connection, admin: Admin) -> None:
    (message_id,) = send(mq)

    def fail(_: object) -> ConsumeResult:
        raise ValueError("no such account")

    with consumer(mq, fail, ordered=True, ordered_retry_interval=0.2):
        found = until_verdict(shell, f"again and again for message {message_id}")
        assert "the last failure: ValueError: no such account" in found["evidence"]


def test_failing_messages_and_dead_letters(shell: Shell, mq: Connection, admin: Admin) -> None:
    (message_id,) = send(mq)

    def fail(_: object) -> ConsumeResult:
        raise ValueError("no such account")

    with consumer(mq, fail, max_reconsume_times=0):
        found = until_verdict(shell, "messages fail for good: 1 dead letter")
        assert any(message_id in line and "no such account" in line for line in found["evidence"])


def test_paused_member(shell: Shell, mq: Connection, admin: Admin) -> None:
    with consumer(mq, lambda _: ConsumeResult.SUCCESS) as member:
        until_verdict(shell, "nothing arrives")
        member.pause()
        send(mq)
        until_verdict(shell, "1 member paused by the program")


def test_missing_topic_and_excluding_filter(shell: Shell, mq: Connection, admin: Admin) -> None:
    with SimpleConsumer(mq, "g", {"bills": "*"}):
        until_verdict(shell, "topic bills does not exist")
    send(mq, 2, tags="new")
    with consumer(mq, lambda _: ConsumeResult.SUCCESS, subscriptions={"t": "paid || shipped"}):
        found = until_verdict(shell, "excludes all of the newest 2 messages of topic t")
        assert "their tags: new" in found["evidence"]


def test_unreachable_broker_is_named(shell: Shell, mq: Connection, admin: Admin, services: Services) -> None:
    send(mq)
    with PullConsumer(mq, "g") as pull:
        pull.commit(QUEUE, 1)
        pull.commit(MessageQueue("t", "broker-b", 0), 0)
    services.stop_broker("broker-b")
    found = admin.explain_group("g")
    assert "broker-b" in found.verdict + "".join(found.evidence)
