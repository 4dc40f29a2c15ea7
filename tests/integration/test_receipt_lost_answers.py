"""Test acknowledgements and lease changes whose answer is lost or not awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raymq.actors.errors import ConnectionLost
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import ReceiptHandle
from raymq.client import Connection, Message, Producer, ReceivedMessage, SimpleConsumer
from raymq.client.errors import BrokerUnavailable
from raymq.client.pop import pop_requests
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def lose_one_answer(mq: Connection, monkeypatch: pytest.MonkeyPatch, code: RequestCode) -> None:
    """Break the connection after the broker has executed the next request of this kind."""
    request, left = mq.pool.request, [code]

    async def losing(address: str, command: Command, *arguments: Any, **options: Any) -> Command:
        answer = await request(address, command, *arguments, **options)
        if command.code in left:
            left.clear()
            raise ConnectionLost(address, "cut")
        return answer

    monkeypatch.setattr(mq.pool, "request", losing)


def receive_messages(mq: Connection, consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message("t", b"%d" % number))
    found: list[ReceivedMessage] = []
    poll_until(lambda: len(found) == count or found.extend(consumer.receive(10, 60.0, 1.0)), 30)
    return found


@pytest.mark.usefixtures("admin")
def test_lost_lease_change_answer_raises_broker_unavailable(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover a regression: the call returned False although the broker had changed the handle."""
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        (message,) = receive_messages(mq, consumer, 1)
        lose_one_answer(mq, monkeypatch, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        with pytest.raises(BrokerUnavailable):
            consumer.change_invisible_duration(message, 60.0)
        assert not consumer.ack(message), "of a request that was answered it is told"


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("count", [1, 2])
def test_ack_with_lost_answer_is_retried_and_recognised(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        messages = receive_messages(mq, consumer, count)
        code = RequestCode.ACK_MESSAGE if count == 1 else RequestCode.BATCH_ACK_MESSAGE
        lose_one_answer(mq, monkeypatch, code)
        assert consumer.ack(messages if count > 1 else messages[0])
        assert not consumer.ack(messages), "they are done, and their handles stale"


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("count", [1, 2])
def test_ack_is_not_retried_after_lease_end(mq: Connection, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        messages = receive_messages(mq, consumer, count)
        requests: list[tuple[int, str]] = []

        async def lost(address: str, command: Command, *_: Any, **__: Any) -> Command:
            requests.append((command.code, address))
            raise ConnectionLost(address, "cut")

        with monkeypatch.context() as patch:
            patch.setattr(mq.pool, "request", lost)
            patch.setattr("raymq.client.pop.pop_requests._lease_left", lambda _: 0.0)
            with pytest.raises(BrokerUnavailable):
                consumer.ack(messages if count > 1 else messages[0])
        code = RequestCode.ACK_MESSAGE if count == 1 else RequestCode.BATCH_ACK_MESSAGE
        acknowledged = [address for request_code, address in requests if request_code == code]
        assert acknowledged
        assert len(acknowledged) == len(set(acknowledged)), "each broker was asked once"


def test_lease_ends_with_first_expiring_delivery() -> None:
    now_ms = int(time.time() * 1000)
    long, short, over = (
        ReceiptHandle(0, now_ms + begins, 30_000, 0, "0", "b", 0, 0) for begins in (0, -20_000, -40_000)
    )
    assert 29.0 < pop_requests._lease_left([long]) <= 30.0
    assert 9.0 < pop_requests._lease_left([long, short]) <= 10.0
    assert pop_requests._lease_left([long, over]) == 0.0


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("count", [1, 2])
def test_cancelled_lease_change_leaves_valid_receipt(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Cover a regression: after a cancelled change the old receipt could not be acknowledged."""
    request, changed, go_on = mq.pool.request, threading.Event(), asyncio.Event()

    async def late(address: str, command: Command, *arguments: Any, **options: Any) -> Command:
        answer = await request(address, command, *arguments, **options)
        if command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            changed.set()
            await go_on.wait()
        return answer

    async def give_up(consumer: SimpleConsumer, message: ReceivedMessage) -> None:
        changing = asyncio.create_task(consumer.achange_invisible_duration(message, 60.0))
        assert await asyncio.to_thread(changed.wait, 30)
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing

    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer, ThreadPoolExecutor(1) as pool:
        messages = receive_messages(mq, consumer, count)
        monkeypatch.setattr(mq.pool, "request", late)
        asyncio.run(give_up(consumer, messages[0]))
        acknowledging = pool.submit(consumer.ack, messages if count > 1 else messages[0])
        mq.loop.call_soon_threadsafe(go_on.set)
        assert acknowledging.result(30)
