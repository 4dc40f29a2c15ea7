"""Test rolling subscription changes: the highest version of the connected members is in force."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.actors.errors import InvalidInput, SubscriptionMismatch
from raymq.actors.wire.commands import lock_commands as wire_lock
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.client.members.membership import Membership
from raymq.client.requests.broker_requests import ask
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def other(services: Services) -> Iterator[Connection]:
    """Yield the connection of another program."""
    with Connection([services.name_server.address]) as made:
        yield made


def logged_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "raymq.consumer" and r.levelno == logging.WARNING]


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"mode": "pop"}], ids=str)
def test_push_consumer_of_lower_version_ends(
    mq: Connection, other: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    old = PushConsumer(mq, "g", {"t": "paid"}, old_taker := RecordingListener(), **options)
    old.start()
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"1", tags="paid"))
        poll_until(lambda: old_taker.bodies == [b"1"])
        with PushConsumer(other, "g", {"t": "*"}, new_taker := RecordingListener(), subscription_version=1, **options):
            for number in range(20):
                producer.send(Message("t", b"new %d" % number, tags="shipped"))
            with pytest.raises(SubscriptionMismatch, match="version 1 is in force"):
                old.wait(10.0)
            assert (old.health.running, old.health.ok) == (False, False)
            assert isinstance(old.health.ended_by, SubscriptionMismatch)
            assert len([warning for warning in logged_warnings(caplog) if "version 1 is in force" in warning]) == 1
            sent = {b"new %d" % number for number in range(20)}
            poll_until(lambda: sent <= set(new_taker.bodies))
            assert set(old_taker.bodies) == {b"1"}
            with pytest.raises(SubscriptionMismatch, match="version 1 is in force"):
                PushConsumer(mq, "g", {"t": "paid"}, RecordingListener()).start()


def test_lower_version_finishes_and_commits_its_messages(mq: Connection, other: Connection, admin: Admin) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(messages: list[ReceivedMessage]) -> ConsumeResult:
        began.set()
        may_end.wait(10.0)
        return ConsumeResult.SUCCESS

    old = PushConsumer(mq, "g", {"t": "*"}, slow, ordered=True)
    old.start()
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"held"), queue=QUEUE)
        assert began.wait(10.0)
        with PushConsumer(other, "g", {"t": "*"}, taker := RecordingListener(), subscription_version=7, ordered=True):
            poll_until(lambda: old.health.ended_by is not None)
            producer.send(Message("t", b"next"), queue=QUEUE)
            may_end.set()
            with pytest.raises(SubscriptionMismatch):
                old.wait(10.0)
            poll_until(lambda: b"next" in taker.bodies)
            assert taker.bodies == [b"next"], "what the old member had was committed"


def test_failed_message_of_lower_version_goes_to_higher(mq: Connection, other: Connection, admin: Admin) -> None:
    """Include a topic that the higher version no longer subscribes to."""
    admin.create_topic("dropped", queues=1)
    began, may_end = threading.Event(), threading.Event()

    def fails(messages: list[ReceivedMessage]) -> ConsumeResult:
        began.set()
        may_end.wait(10.0)
        return ConsumeResult.RECONSUME_LATER

    old = PushConsumer(mq, "g", {"t": "*", "dropped": "*"}, fails)
    old.start()
    with Producer(mq, "p") as producer:
        producer.send(Message("dropped", b"failed"))
    assert began.wait(10.0)
    with PushConsumer(other, "g", {"t": "*"}, taker := RecordingListener(), subscription_version=1):
        poll_until(lambda: old.health.ended_by is not None)
        may_end.set()
        poll_until(lambda: b"failed" in taker.bodies)


def test_simple_consumer_of_lower_version_only_acknowledges(
    mq: Connection, other: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(mq, "p") as producer, SimpleConsumer(mq, "g", {"t": "paid"}) as old:
        producer.send(Message("t", b"1", tags="paid"))
        (message,) = old.receive()
        with SimpleConsumer(other, "g", {"t": "*"}, subscription_version=1) as new:
            producer.send(Message("t", b"2", tags="shipped"))
            with pytest.raises(SubscriptionMismatch, match="version 1 is in force"):
                old.receive(await_duration=0.0)
            assert (old.health.running, type(old.health.ended_by)) == (False, SubscriptionMismatch)
            assert len(logged_warnings(caplog)) == 1
            assert old.change_invisible_duration(message, 60.0)
            assert old.ack(message)
            (received,) = new.receive()
            assert received.body == b"2"
            with pytest.raises(SubscriptionMismatch):
                SimpleConsumer(mq, "g", {"t": "paid"})


def test_idle_simple_consumer_learns_of_higher_version(mq: Connection, other: Connection, admin: Admin) -> None:
    with SimpleConsumer(mq, "g", {"t": "paid"}) as old:
        refused = threading.Event()

        def wait() -> None:
            with pytest.raises(SubscriptionMismatch):
                old.receive(await_duration=20.0)
            refused.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        with SimpleConsumer(other, "g", {"t": "*"}, subscription_version=1):
            assert refused.wait(5.0)
        waiting.join(5.0)


def test_broadcast_member_of_lower_version_ends(mq: Connection, other: Connection, admin: Admin) -> None:
    model = MessageModel.BROADCASTING
    old = PushConsumer(mq, "g", {"t": "paid"}, RecordingListener(), model=model)
    old.start()
    with (
        PushConsumer(other, "g", {"t": "*"}, RecordingListener(), model=model, subscription_version=1),
        pytest.raises(SubscriptionMismatch),
    ):
        old.wait(10.0)


def test_version_is_rolled_back_by_stopping_its_members(mq: Connection, other: Connection, admin: Admin) -> None:
    with PushConsumer(other, "g", {"t": "*"}, RecordingListener(), subscription_version=5):
        pass
    with PushConsumer(mq, "g", {"t": "paid"}, taker := RecordingListener(), subscription_version=4):
        with Producer(mq, "p") as producer:
            producer.send(Message("t", b"x", tags="paid"))
        poll_until(lambda: taker.bodies == [b"x"])


def test_version_stays_in_force_two_seconds_after_last_member(services: Services, mq: Connection, admin: Admin) -> None:
    with Connection([services.name_server.address]) as lost:
        PushConsumer(lost, "g", {"t": "*"}, RecordingListener(), subscription_version=5).start()
        lost.run(lost.pool.close())
        with pytest.raises(SubscriptionMismatch):
            PushConsumer(mq, "g", {"t": "paid"}, RecordingListener(), subscription_version=4).start()


def test_members_of_equal_version_need_equal_subscriptions(mq: Connection, other: Connection, admin: Admin) -> None:
    with PushConsumer(mq, "g", {"t": "*"}, RecordingListener(), subscription_version=2):
        with pytest.raises(SubscriptionMismatch):
            PushConsumer(other, "g", {"t": "paid"}, RecordingListener(), subscription_version=2).start()
        with PushConsumer(other, "g", {"t": "*"}, RecordingListener(), subscription_version=2):
            pass
    for wrong in (-1, 1.5, "2", None, True):
        with pytest.raises(InvalidInput):
            PushConsumer(mq, "g", {"t": "*"}, RecordingListener(), subscription_version=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            SimpleConsumer(mq, "g", {"t": "*"}, subscription_version=wrong)  # type: ignore[arg-type]


def test_brokers_refuse_continuing_member_of_lower_version(
    mq: Connection, other: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Membership, "supersede", lambda *_: None)  # the old members do not end
    old = PushConsumer(mq, "g", {"t": "paid"}, old_taker := RecordingListener())
    old.start()
    new = PushConsumer(other, "g", {"t": "*"}, new_taker := RecordingListener(), subscription_version=1)
    new.start()
    with Producer(mq, "p") as producer:
        for number in range(40):
            producer.send(Message("t", b"%d" % number, tags="paid"))
    poll_until(lambda: len(set(new_taker.bodies)) == 40)
    assert old_taker.bodies == []
    assert old._consuming is not None
    lock = wire_lock.lock_command(old._consuming._client_id, "g", [QUEUE])
    with pytest.raises(SubscriptionMismatch):
        mq.run(ask(mq, "t", "broker-a", lock, 5.0))
    old.shutdown()
    new.shutdown()
    with (
        SimpleConsumer(mq, "s", {"t": "paid"}) as simple,
        SimpleConsumer(other, "s", {"t": "*"}, subscription_version=1),
    ):
        for _ in range(3):
            with pytest.raises(SubscriptionMismatch):
                simple.receive(64, await_duration=0.2)
