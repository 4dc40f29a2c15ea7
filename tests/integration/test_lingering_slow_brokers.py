"""Test lingering sends to brokers that are slower than the producer."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import wait
from inspect import isawaitable
from itertools import cycle
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import ServerConnection
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.errors import SendError
from tests.integration.conftest import Services
from tests.polling import poll_until


def slow_down(services: Services, seconds: float) -> None:
    """Delay every batch append on all brokers by `seconds`."""
    for broker in services.brokers.values():
        append = broker._server.handlers[RequestCode.APPEND_RECORDS]

        async def slowly(connection: ServerConnection, request: Command, append: Any = append) -> Any:
            await asyncio.sleep(seconds)
            answer = append(connection, request)
            return await answer if isawaitable(answer) else answer

        broker._server.handlers = {**broker._server.handlers, RequestCode.APPEND_RECORDS: slowly}


def test_keyed_sends_keep_pace_with_slow_brokers(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: batches sent one by one waited ever longer until they timed out."""
    del admin
    slow_down(services, 0.05)
    with Producer(mq, "p", linger=0.001, timeout=10.0) as producer:
        futures = []
        for number in range(1_000):
            futures.append(producer.send_async(Message("t", b"%d" % number), sharding_key="k"))
            time.sleep(0.004)
        assert [future.result(30).queue_offset for future in futures] == list(range(1_000))


@pytest.mark.long
def test_idempotent_sends_keep_pace_with_slow_brokers(services: Services, mq: Connection, admin: Admin) -> None:
    """Send without keys: an idempotent producer sends one batch per queue at a time."""
    slow_down(services, 0.05)
    with Producer(mq, "p", linger=0.001, timeout=2.0, idempotent=True) as producer:
        futures = []
        for number in range(1_500):
            futures.append(producer.send_async(Message("t", b"%d" % number)))
            time.sleep(0.004)
        assert [future.exception(10) for future in futures] == [None] * 1_500
    assert sum(stats.max_offset for stats in admin.topic_stats("t").values()) == 1_500


@pytest.mark.parametrize("by", ["queue", "sharding_key"])
def test_wait_for_earlier_batches_counts_toward_timeout(
    services: Services, mq: Connection, admin: Admin, by: str
) -> None:
    del admin
    options: Any = {by: MessageQueue("t", "broker-a", 0) if by == "queue" else "k"}
    with Producer(mq, "p", linger=0.001, timeout=1.0) as producer:
        producer.send_async(Message("t", b"x"), **options).result(10)
        batcher = producer._paths.batcher
        assert batcher is not None
        release = threading.Event()
        services.loop.loop.call_soon_threadsafe(release.wait, 60.0)  # blocks the brokers
        futures = []
        for _ in range(12):
            futures.append(producer.send_async(Message("t", b"x"), **options))
            poll_until(lambda: not batcher.open, what="it is a batch of its own")
        left = wait(futures, 8.0).not_done  # one after the other they would take 12 s
        release.set()
        assert not left
        assert all(isinstance(future.exception(), SendError) for future in futures)


def test_flush_does_not_wait_for_later_sends(services: Services, mq: Connection, admin: Admin) -> None:
    """Flush beside sending threads, which always have a batch in flight."""
    slow_down(services, 0.3)
    queues = [MessageQueue("t", "broker-a", number) for number in range(4)]
    stopping = threading.Event()

    def send(producer: Producer) -> None:
        for queue in cycle(queues):
            producer.send_async(Message("t", b"others"), queue=queue, timeout=10.0)
            if stopping.wait(0.1):
                return

    with Producer(mq, "p", linger=0.01) as producer:
        sending = threading.Thread(target=send, args=(producer,))
        sending.start()
        try:
            for _ in range(3):
                mine = producer.send_async(Message("t", b"mine"), queue=MessageQueue("t", "broker-b", 0))
                assert producer.flush(5.0)
                assert mine.done()
        finally:
            stopping.set()
            sending.join()
