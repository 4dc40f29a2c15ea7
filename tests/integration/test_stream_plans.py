"""Test how tasks of a stream get the plan of their batch, over real sockets, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.bulk.coordinator_lookup import ensure_coordinator, rendezvous_choice
from raymq.client.errors import BrokerUnavailable, InvalidInput, TopicNotFound
from raymq.spark_bridge import stream_tasks
from raymq.spark_bridge.batch_plan import StreamBroken
from raymq.spark_bridge.stream_tasks import STREAM_KIND, StreamBatch, StreamSource, get_or_create_plan
from tests.integration.conftest import Services

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def source(mq: Connection, admin: Admin) -> StreamSource:
    return StreamSource("agg", mq.run(ensure_coordinator(mq, STREAM_KIND, "agg")), ("t",), None, None)


def send(mq: Connection, count: int) -> None:
    with Producer(mq, "tests") as producer:
        producer.send_batch([Message("t", b"x")] * count, queue=QUEUE)


def test_tasks_of_one_batch_share_one_plan(mq: Connection, source: StreamSource) -> None:
    async def plan_concurrently() -> list[tuple[int, int]]:
        plans = await asyncio.gather(*(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")) for _ in range(20)))
        return [plan.ranges[QUEUE] for plan in plans]

    send(mq, 5)
    assert set(mq.run(plan_concurrently())) == {(0, 5)}
    send(mq, 5)
    assert set(mq.run(plan_concurrently())) == {(0, 5)}
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start"))).ranges[QUEUE] == (5, 10)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("other", 0, "start"))).ranges[QUEUE] == (0, 10)


def test_streams_of_equal_name_in_one_query_are_refused(mq: Connection, admin: Admin, source: StreamSource) -> None:
    """Refuse the second stream, which would get the messages of the first."""
    admin.create_topic("u", queues=1)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    other = replace(source, topics=("u",))
    with pytest.raises(InvalidInput, match="a name of its own for each stream"):
        mq.run(get_or_create_plan(mq, other, StreamBatch("q", 0, "start")))
    # A later start of the query may read other topics; batches planned before keep their plan.
    assert mq.run(get_or_create_plan(mq, other, StreamBatch("q", 0, "later"))).topics == {"t"}
    assert mq.run(get_or_create_plan(mq, other, StreamBatch("q", 1, "later"))).topics == {"u"}


def test_skipped_batch_number_loses_no_message(mq: Connection, source: StreamSource) -> None:
    """Skip a number, as Spark does for batches that only clean its state."""
    send(mq, 3)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    send(mq, 4)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 2, "start"))).ranges[QUEUE] == (3, 7)


def test_unknown_query_does_not_start_over(mq: Connection, source: StreamSource) -> None:
    with pytest.raises(StreamBroken, match="has no plan of the query q"):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", 5, "start")))
    for number in range(4):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))
    with pytest.raises(StreamBroken, match="older than the batches with stored plans"):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start")))


def test_plan_is_refused_after_topic_is_recreated(mq: Connection, admin: Admin, source: StreamSource) -> None:
    send(mq, 3)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    admin.delete_topic("t")
    with pytest.raises(TopicNotFound):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    admin.create_topic("t", queues=2)
    send(mq, 9)
    for number in (0, 1):
        with pytest.raises(StreamBroken, match="recreated"):
            mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))


def test_power_loss_is_reported_though_offsets_are_reused(
    services: Services, mq: Connection, source: StreamSource
) -> None:
    send(mq, 5)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    store = services.brokers["broker-a"].core.store

    def lose_from(offset: int) -> None:
        """Cut the queue at `offset`, like a start that finds a shorter log."""
        store.tables.recovery_epochs.cut(int(store.entries("t", 0, offset, 1, written=True)[0][0]))

    send(mq, 1)
    services.loop.run(run_on_loop(lambda: lose_from(5)))
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start"))).ranges[QUEUE] == (0, 5)
    services.loop.run(run_on_loop(lambda: lose_from(4)))
    for number in (0, 1):
        with pytest.raises(StreamBroken, match="power failure"):
            mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))


async def run_on_loop(call: Callable[[], None]) -> None:
    call()


def test_planning_waits_for_restarting_broker(
    services: Services, mq: Connection, source: StreamSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait for the broker: without it a watermark would pass its messages."""
    name = next(name for name in map(str, range(99)) if rendezvous_choice(name, services.brokers) == "broker-b")
    source = replace(source, stream=name, coordinator=mq.run(ensure_coordinator(mq, STREAM_KIND, name)))
    assert source.coordinator == "broker-b"
    send(mq, 3)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    services.crash_broker("broker-a")
    monkeypatch.setattr(stream_tasks, "RETRY_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(BrokerUnavailable, match="broker-a"):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start")))
    monkeypatch.undo()
    services.start_broker("broker-a")
    send(mq, 2)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start"))).ranges[QUEUE] == (3, 5)


def test_batches_wait_for_plan_coordinator_and_keep_plan(
    services: Services, mq: Connection, source: StreamSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(mq, 3)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    services.crash_broker(source.coordinator)
    with monkeypatch.context() as patch:
        patch.setattr(stream_tasks, "retry_while_unavailable", lambda attempt, *_: attempt())
        for number in (0, 1):
            with pytest.raises(BrokerUnavailable, match=source.coordinator):
                mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))
    services.start_broker(source.coordinator)
    send(mq, 2)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start"))).ranges[QUEUE] == (0, 3)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start"))).ranges[QUEUE] == (3, 5)
