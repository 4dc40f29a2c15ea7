"""Test that a cancelled or interrupted poll consumes nothing: the next poll returns its messages."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.client import Admin, Connection, MessageQueue, PullConsumer
from tests.integration.pulling import consumer_before_messages

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def consumer(mq: Connection, admin: Admin) -> Iterator[PullConsumer]:
    del admin
    with consumer_before_messages(mq, QUEUE, 50) as pull:
        yield pull


@pytest.mark.parametrize("way", ["apoll", "afetch_table"])
def test_cancelled_poll_leaves_messages_to_next_poll(
    consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Cancel, as asyncio.wait_for does, just when the connection's loop has the answer."""
    fetched = threading.Event()
    fetch = consumer._pull_engine.fetch

    async def fetch_and_signal(*arguments: Any) -> Any:
        part = await fetch(*arguments)
        fetched.set()
        return part

    monkeypatch.setattr(consumer._pull_engine, "fetch", fetch_and_signal)

    async def main() -> list[int]:
        poll = asyncio.ensure_future(getattr(consumer, way)(QUEUE, 10))
        await asyncio.sleep(0)
        assert fetched.wait(20)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        return [message.queue_offset for message in await consumer.apoll(QUEUE, 10)]

    assert asyncio.run(main()) == list(range(10))
    assert consumer.position(QUEUE) == 10


@pytest.mark.parametrize(("way", "step"), [("poll", "decode_messages"), ("fetch_table", "_table")])
def test_interrupted_poll_leaves_messages_to_next_poll(
    consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch, way: str, step: str
) -> None:
    """Interrupt, as Ctrl-C in a notebook, while this thread decodes its own socket's data."""
    assert [message.queue_offset for message in consumer.poll(QUEUE, 5)] == list(range(5))
    name = f"raymq.client.pull.pull_consumer.{step}"

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(consumer, way)(QUEUE, 10)
    assert consumer.position(QUEUE) == 5
    table = consumer.fetch_table(QUEUE, 10)
    assert table["offset"].to_pylist() == list(range(5, 15))
    assert [message.queue_offset for message in consumer.poll(QUEUE, 10)] == list(range(15, 25))
