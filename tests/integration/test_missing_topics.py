"""Test consumers of topics that do not exist yet: they wait, warn once and start at the first message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput, SubscriptionMismatch, TopicNotFound
from raymq.client import (
    Admin,
    Connection,
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.cluster.doctor.broker_checks import missing_topics
from raymq.cluster.doctor.broker_runtime import fetch_runtime_figures
from tests.integration.conftest import Services
from tests.polling import poll_until

#: Limit for the delivery of a message after its topic was created.
DELIVERY_SECONDS = 2.0


class Listener:
    """Record the arrival time of every message."""

    def __init__(self) -> None:
        self.taken: dict[bytes, float] = {}

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        self.taken.update((message.body, time.monotonic()) for message in messages)
        return ConsumeResult.SUCCESS


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "raymq.consumer" and r.levelno == logging.WARNING]


@pytest.fixture
def mqs(services: Services) -> Iterator[list[Connection]]:
    """Yield two connections, as of different programs."""
    made = [Connection([services.name_server.address]) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def create_topic_with_message(mq: Connection, topic: str, body: bytes = b"first") -> float:
    """Create a topic, send a message to it and return the time."""
    Admin(mq).create_topic(topic, queues=2)
    with Producer(mq, "p") as producer:
        producer.send(Message(topic, body))
    return time.monotonic()


@pytest.mark.parametrize("options", [
    {}, {"ordered": True}, {"consume_from": ConsumeFrom.LAST}, {"model": MessageModel.BROADCASTING},
    {"mode": "pop"}, {"mode": "pop", "consume_from": ConsumeFrom.LAST},
    {"model": MessageModel.BROADCASTING, "consume_from": ConsumeFrom.LAST},
], ids=str)  # fmt: skip
def test_push_consumer_reads_topic_created_later(
    mqs: list[Connection], caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    with PushConsumer(mqs[0], "g", {"orders": "*"}, listener := Listener(), **options):
        (warning,) = warnings(caplog)
        assert "waits for topic orders, which does not exist" in warning
        sent_at = create_topic_with_message(mqs[1], "orders")
        poll_until(lambda: b"first" in listener.taken)
        assert listener.taken[b"first"] - sent_at < DELIVERY_SECONDS
    assert len(warnings(caplog)) == 1


def test_missing_topic_does_not_block_other_topics(mqs: list[Connection], caplog: pytest.LogCaptureFixture) -> None:
    create_topic_with_message(mqs[1], "there", b"there")
    with PushConsumer(mqs[0], "g", {"there": "*", "a": "*", "b": "*"}, listener := Listener()):
        poll_until(lambda: b"there" in listener.taken)
        (warning,) = warnings(caplog)
        assert "waits for topic a, which does not exist; waits for topic b, which does not exist" in warning
        create_topic_with_message(mqs[1], "a", b"a")
        poll_until(lambda: b"a" in listener.taken)


def test_simple_consumer_waits_for_missing_topic(mqs: list[Connection], caplog: pytest.LogCaptureFixture) -> None:
    with SimpleConsumer(mqs[0], "g", {"orders": "*"}) as consumer:
        assert consumer.receive(await_duration=0.3) == []
        sent_at = create_topic_with_message(mqs[1], "orders")
        (message,) = consumer.receive(await_duration=10.0)
        assert time.monotonic() - sent_at < DELIVERY_SECONDS
        assert consumer.ack(message)
    (warning,) = warnings(caplog)
    assert "waits for topic orders, which does not exist" in warning


@pytest.mark.parametrize("pause", [0.0, 1.5], ids=["at once", "later"])
def test_recreated_topic_is_consumed_again(mqs: list[Connection], pause: float) -> None:
    create_topic_with_message(mqs[1], "orders", b"old")
    with (
        PushConsumer(mqs[0], "push", {"orders": "*"}, listener := Listener()),
        SimpleConsumer(mqs[0], "simple", {"orders": "*"}) as consumer,
    ):
        poll_until(lambda: b"old" in listener.taken)
        assert consumer.ack(consumer.receive())
        Admin(mqs[1]).delete_topic("orders")
        assert consumer.receive(await_duration=pause) == []
        sent_at = create_topic_with_message(mqs[1], "orders", b"new")
        (message,) = consumer.receive(await_duration=10.0)
        assert message.body == b"new"
        assert time.monotonic() - sent_at < DELIVERY_SECONDS
        poll_until(lambda: b"new" in listener.taken)
        assert listener.taken[b"new"] - sent_at < DELIVERY_SECONDS


def test_missing_topics_error_raises_topic_not_found(mqs: list[Connection], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TopicNotFound):
        PushConsumer(mqs[0], "g", {"orders": "*"}, Listener(), missing_topics="error").start()
    with pytest.raises(TopicNotFound):
        SimpleConsumer(mqs[0], "g", {"orders": "*"}, missing_topics="error")
    with pytest.raises(InvalidInput):
        PushConsumer(mqs[0], "g", {"orders": "*"}, Listener(), missing_topics="create")
    assert warnings(caplog) == []


def test_different_subscription_to_missing_topic_is_refused(mqs: list[Connection]) -> None:
    with PushConsumer(mqs[0], "g", {"orders": "*"}, Listener()):
        with pytest.raises(SubscriptionMismatch):
            PushConsumer(mqs[1], "g", {"orders": "paid"}, Listener()).start()
        with PushConsumer(mqs[1], "g", {"orders": "*"}, Listener()):
            pass


def doctor_findings(mq: Connection) -> list[str]:
    figures, _ = fetch_runtime_figures(mq, Admin(mq).cluster_info())
    return [finding.found for finding in missing_topics(figures)]


def test_group_progress_and_doctor_show_missing_topic(mqs: list[Connection]) -> None:
    admin = Admin(mqs[1])
    with PushConsumer(mqs[0], "g", {"orders": "*"}, listener := Listener()):
        progress = admin.group_progress("g")
        assert progress.missing_topics == ["orders"]
        assert {queue.topic for queue in progress} == {"%RETRY%g"}
        assert "group g waits for topic orders, which does not exist" in doctor_findings(mqs[1])
        create_topic_with_message(mqs[1], "orders")
        poll_until(lambda: listener.taken)
        progress = admin.group_progress("g")
        assert progress.missing_topics == []
        assert {queue.topic for queue in progress} == {"%RETRY%g", "orders"}


def test_consumers_do_not_auto_create_topics(services: Services, mqs: list[Connection]) -> None:
    services.auto_create_topics = True
    for name in services.names:
        services.stop_broker(name)
        services.start_broker(name)
    with (
        PushConsumer(mqs[0], "g", {"orders": "*"}, listener := Listener()),
        SimpleConsumer(mqs[0], "s", {"orders": "*"}) as consumer,
    ):
        assert consumer.receive(await_duration=1.0) == []
        assert Admin(mqs[1]).topics() == []
        with Producer(mqs[1], "p") as producer:
            producer.send(Message("orders", b"first"))
        poll_until(lambda: b"first" in listener.taken)
        assert [message.body for message in consumer.receive()] == [b"first"]


def test_missing_topic_poll_is_shared_per_connection(services: Services, mqs: list[Connection]) -> None:
    mq, requests = mqs[0], list[str]()
    real_topics, real_get = mq.routes.topics, mq.routes.get

    async def topics(*args: Any, **options: Any) -> list[str]:
        requests.append("topics")
        return await real_topics(*args, **options)

    async def get(topic: str, **options: Any) -> Any:
        requests.append(topic)
        return await real_get(topic, **options)

    mq.routes.topics, mq.routes.get = topics, get  # type: ignore[method-assign]
    consumers = [PushConsumer(mq, f"g{n}", {f"a{n}": "*", "b": "*"}, Listener()) for n in range(10)]
    for consumer in consumers:
        consumer.start()
    requests.clear()
    time.sleep(2.0)
    assert requests.count("topics") <= 5
    assert not [topic for topic in requests if topic.startswith(("a", "b"))]
    for consumer in consumers:
        consumer.shutdown()


def test_later_member_skips_no_message_of_awaited_topic(mqs: list[Connection]) -> None:
    """Cover a regression: the new member began at the end of an unread topic."""
    with PushConsumer(mqs[0], "g", {"orders": "*"}, first := Listener(), consume_from=ConsumeFrom.LAST):
        create_topic_with_message(mqs[1], "orders")
        with PushConsumer(mqs[1], "g", {"orders": "*"}, second := Listener(), consume_from=ConsumeFrom.LAST):
            poll_until(lambda: b"first" in first.taken or b"first" in second.taken)


def test_consumer_start_without_broker_raises_unavailable(services: Services, mqs: list[Connection]) -> None:
    for name in services.names:
        services.stop_broker(name)
    with pytest.raises(BrokerUnavailable):
        PushConsumer(mqs[0], "g", {"orders": "*"}, Listener()).start()


def test_dead_letter_topic_without_messages_reads_empty(
    mqs: list[Connection], caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin(mqs[1])
    admin.create_topic("t", queues=1)
    with PushConsumer(mqs[0], "g", {"t": "*"}, lambda _: ConsumeResult.RECONSUME_LATER, max_reconsume_times=0):
        assert admin.dlq_list("g") == []
        assert PullConsumer(mqs[1], "pull").queues("%DLQ%g") == []
        assert admin.topic_stats("%DLQ%g") == {}
        assert admin.query_by_key("%DLQ%g", "key") == []
        assert admin.read_table("%DLQ%g").num_rows == 0
        for read in (PullConsumer(mqs[1], "pull").queues, admin.topic_stats, admin.read_table):
            with pytest.raises(TopicNotFound):
                read("%DLQ%unknown")
        with SimpleConsumer(mqs[1], "second", {"%DLQ%g": "*"}, missing_topics="error") as second:
            assert second.receive(await_duration=0.2) == []
            with PushConsumer(mqs[1], "third", {"%DLQ%g": "*"}, listener := Listener(), missing_topics="error"):
                assert not [warning for warning in warnings(caplog) if "waits for" in warning]
                with Producer(mqs[1], "p") as producer:
                    producer.send(Message("t", b"dead"))
                assert [message.body for message in second.receive(await_duration=10.0)] == [b"dead"]
                poll_until(lambda: b"dead" in listener.taken)


def test_constructors_do_not_block_running_event_loop(services: Services, mqs: list[Connection]) -> None:
    create_topic_with_message(mqs[1], "t", b"x")

    async def use() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for name in services.names:
            services.stop_broker(name)
        mq = mqs[0]
        failing = PullConsumer(mq, "never"), SimpleConsumer(mq, "never-either", {"t": "*"})
        assert loop.time() - began < 5.0
        with pytest.raises(BrokerUnavailable):
            async with failing[1]:
                pass
        for name in services.names:
            services.start_broker(name)
        consumer = SimpleConsumer(mq, "s", {"t": "*"})
        assert [message.body for message in await consumer.areceive()] == [b"x"]
        await consumer.aclose()
        async with SimpleConsumer(mq, "other", {"t": "*"}):
            assert "other" in await Admin(mq).agroups()
        async with PullConsumer(mq, "p") as pull:
            assert "p" in await Admin(mq).agroups()
            assert len(await pull.aqueues("t")) == 4
        refused = SimpleConsumer(mq, "r", {"nowhere": "*"}, missing_topics="error")
        with pytest.raises(TopicNotFound):
            await refused.areceive()
        Admin(mq)
        await refused.aclose()

    asyncio.run(use())
