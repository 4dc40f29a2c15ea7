"""Test that a connection closes its clients concurrently, so that many take no longer than one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from raymq.client.pop.pop_consumer_engine import PopConsumerEngine
from raymq.client.pop.simple_consumer import SimpleConsumer
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

COUNT = 4


def test_simple_consumers_close_concurrently(services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    stop, go_on = PopConsumerEngine._give_all_back, threading.Event()

    async def held_up(popping: PopConsumerEngine, handover: float) -> None:
        steps.append("begins")
        await asyncio.to_thread(go_on.wait, 30)
        await stop(popping, handover)
        steps.append("ends")

    monkeypatch.setattr(PopConsumerEngine, "_give_all_back", held_up)
    mq = Connection([services.name_server.address])
    consumers = [SimpleConsumer(mq, f"g{number}", {"t": "*"}) for number in range(COUNT)]
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(mq.close)
        try:
            poll_until(lambda: steps, 20)
            poll_until(lambda: len(steps) == COUNT, 5)
            assert steps == ["begins"] * COUNT
        finally:
            go_on.set()
        closing.result(30)
    assert steps == ["begins"] * COUNT + ["ends"] * COUNT
    for consumer in consumers:
        consumer.close()  # a second close does nothing, also without a connection


def test_sends_of_last_listener_call_are_stored(services: Services, admin: Admin) -> None:
    """Producers are closed after the consumers, whose listener calls may send with them."""
    admin.create_topic("out", queues=1)
    began, go_on = threading.Event(), threading.Event()
    mq = Connection([services.name_server.address])
    producers = [Producer(mq, "p", linger=2.0) for _ in range(COUNT)]

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        began.set()
        go_on.wait(30)
        for producer in producers:
            producer.send_async(Message("out", b"x"))
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "g", {"t": "*"}, listener)
    consumer.start()
    producers[0].send(Message("t", b"x"))
    assert began.wait(30)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(mq.close)
        poll_until(lambda: consumer._closed)
        go_on.set()
        closing.result(30)
    assert sum(stats.max_offset for stats in admin.topic_stats("out").values()) == COUNT


def test_ordered_consumer_keeps_locks_until_last_call_ends(mq: Connection, admin: Admin) -> None:
    began, go_on = threading.Event(), threading.Event()

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        began.set()
        go_on.wait(60)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "g", {"t": "*"}, listener, ordered=True)
    consumer.start()
    Producer(mq, "p").send(Message("t", b"x"))
    assert began.wait(30)
    consuming = consumer._consuming
    assert consuming is not None
    with ThreadPoolExecutor(1) as threads:
        stopping = threads.submit(consumer.shutdown, 60.0)
        poll_until(lambda: consuming.delivery._caller.stopping)
        mq.run(_yield_to_loop())  # after this the cancelled tasks have ended
        works = set(consuming.supervisor.works)
        go_on.set()
        stopping.result(30)
    assert {"heartbeat", "locks"} <= works
    assert not consuming.supervisor.works


async def _yield_to_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
