"""A poll that was cancelled or interrupted has taken nothing: the next one returns what it would have."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.client import Admin, Connection, MessageQueue, PullConsumer
from tests.integration.pulling import before_messages

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def consumer(mq: Connection, admin: Admin) -> Iterator[PullConsumer]:
    del admin
    with before_messages(mq, QUEUE, 50) as pull:
        yield pull


@pytest.mark.parametrize("way", ["apoll", "afetch_table"])
def test_a_cancelled_poll_leaves_its_messages_to_the_next(
    consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """As asyncio.wait_for cancels it: just when the loop of the connection has what it asked for."""
    fetched = threading.Event()
    fetch = consumer._pull_engine.fetch

    async def telling(*arguments: Any) -> Any:
        part = await fetch(*arguments)
        fetched.set()
        return part

    monkeypatch.setattr(consumer._pull_engine, "fetch", telling)

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
def test_an_interrupted_poll_leaves_its_messages_to_the_next(
    consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch, way: str, step: str
) -> None:
    """As Ctrl-C interrupts it in a notebook, while it decodes what came over this thread's own socket."""
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
