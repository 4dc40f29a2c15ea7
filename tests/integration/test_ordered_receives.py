"""Test ordered receives: a queue delivers nothing while one of its messages is with a member."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, SimpleConsumer
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def consumer(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield a consumer that keeps six messages of a queue from a cancelled receive."""
    del admin
    with Producer(mq, "p") as producer, SimpleConsumer(mq, "g", {"t": "*"}, ordered=True) as made:
        producer.send_batch([Message("t", b"%d" % number) for number in range(6)], queue=QUEUE)
        requests = made._pop_engine.requests
        pop, given, given_up = requests.pop, threading.Event(), threading.Event()

        async def late(*arguments: Any, **how: Any) -> Any:
            found = await pop(*arguments, **how)
            if found[0]:
                given.set()
                await asyncio.to_thread(given_up.wait, 30)
            return found

        async def give_up() -> None:
            receiving = asyncio.ensure_future(made.areceive(6, 60.0, 60.0))
            await asyncio.to_thread(given.wait, 30)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            given_up.set()

        with monkeypatch.context() as patch:
            patch.setattr(requests, "pop", late)
            asyncio.run(give_up())
            poll_until(lambda: made._pop_engine._kept.count(1) == 6, 30)
        yield made


def bodies(receive: Callable[..., Any], count: int) -> list[bytes]:
    return [message.body for message in receive(count, 60.0, 1.0)]


def test_next_message_follows_ack_of_previous_one(consumer: SimpleConsumer) -> None:
    """Cover a regression: the second message was received before the first was acknowledged."""
    (first,) = consumer.receive(1, 60.0, 5.0)
    assert first.body == b"0"
    assert bodies(consumer.receive, 1) == []
    assert consumer.ack(first)
    (second,) = consumer.receive(1, 60.0, 10.0)
    assert (second.body, second.reconsume_times) == (b"1", 0)
    assert consumer.ack(second)
    rest = consumer.receive(10, 60.0, 10.0)
    assert [(message.body, message.reconsume_times) for message in rest] == [(b"%d" % n, 0) for n in range(2, 6)]


def test_other_member_waits_for_ack_of_ordered_queue(consumer: SimpleConsumer, mq: Connection) -> None:
    (first,) = consumer.receive(1, 60.0, 5.0)
    with SimpleConsumer(mq, "g", {"t": "*"}, ordered=True) as other:
        assert bodies(other.receive, 6) == []
        assert consumer.ack(first)
        poll_until(lambda: bodies(other.receive, 6) == [b"1", b"2", b"3", b"4", b"5"], 10)
