"""Test listeners that close their consumer or its connection."""

from __future__ import annotations

import asyncio
import threading

import pytest

from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["plain", "async", "awaits aclose"])
def test_listener_closes_its_connection_at_once(services: Services, admin: Admin, kind: str) -> None:
    """Fault 14.21: the close waited for the listener call itself, and the call's result was lost."""
    mq = Connection([services.name_server.address])
    sent = Producer(mq, "p").send(Message("t", b"1"))
    got: list[bytes] = []
    closed = threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        got.extend(message.body for message in messages)
        mq.close()
        closed.set()
        return ConsumeResult.SUCCESS

    async def awaited(messages: list[ReceivedMessage]) -> ConsumeResult:
        return listener(messages)

    async def awaits(messages: list[ReceivedMessage]) -> ConsumeResult:
        got.extend(message.body for message in messages)
        await mq.aclose()
        closed.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "g", {"t": "*"}, {"plain": listener, "async": awaited, "awaits aclose": awaits}[kind])
    consumer.start()
    assert closed.wait(4), "it waits for nothing"
    assert consumer.wait(20)
    poll_until(lambda: mq._closed and not mq._loop.is_running, 20, "the connection is closed behind the call")  # type: ignore[union-attr]
    assert got == [b"1"]
    assert admin.group_progress("g")[sent.queue].committed_offset == sent.queue_offset + 1
    assert not [thread for thread in threading.enumerate() if thread.name == "raymq-close"]


@pytest.mark.timeout(60)
def test_two_listeners_close_their_shared_connection(services: Services, admin: Admin) -> None:
    mq = Connection([services.name_server.address])
    admin.create_topic("u", queues=1)
    sent = [Producer(mq, "p").send(Message(topic, b"1")) for topic in ("t", "u")]
    both = threading.Barrier(2)
    closed: list[str] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        both.wait(10)
        mq.close()
        closed.append(messages[0].topic)
        return ConsumeResult.SUCCESS

    consumers = [PushConsumer(mq, f"g-{topic}", {topic: "*"}, listener) for topic in ("t", "u")]
    for consumer in consumers:
        consumer.start()
    poll_until(lambda: sorted(closed) == ["t", "u"], 5, "neither waits for the other")
    assert all(consumer.wait(20) for consumer in consumers)
    poll_until(lambda: mq._closed, 20)
    for at in sent:
        progress = admin.group_progress(f"g-{at.queue.topic}")
        assert progress[at.queue].committed_offset == at.queue_offset + 1


@pytest.mark.timeout(60)
def test_listener_shuts_down_before_start_returns(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored messages are delivered before `start` has returned."""
    sent = Producer(mq, "p").send(Message("t", b"1"))
    called = threading.Event()

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        consumer.shutdown()
        called.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "g", {"t": "*"}, listener)
    begin = consumer._begin

    async def begun(*given: object) -> object:
        consuming = await begin(*given)  # type: ignore[arg-type]
        assert await asyncio.to_thread(called.wait, 20)
        return consuming

    monkeypatch.setattr(consumer, "_begin", begun)
    consumer.start()
    assert consumer.wait(20)
    assert not consumer.health.running
    assert admin.group_progress("g")[sent.queue].committed_offset == sent.queue_offset + 1
