"""How the tasks of a stream come to the plan of their batch, over real sockets, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.bulk import batch_plans
from raymq.client.bulk.batch_plans import STREAM_KIND
from raymq.client.bulk.coordinator_lookup import ensure_coordinator, rendezvous_choice
from raymq.client.errors import BrokerUnavailable, InvalidInput, TopicNotFound
from raymq.spark_bridge import stream_tasks
from raymq.spark_bridge.batch_planner import StreamBroken
from raymq.spark_bridge.stream_tasks import StreamBatch, StreamSource, get_or_create_plan
from tests.integration.conftest import Services

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def source(mq: Connection, admin: Admin) -> StreamSource:
    return StreamSource("agg", mq.run(ensure_coordinator(mq, STREAM_KIND, "agg")), ("t",), None, None)


def send(mq: Connection, count: int) -> None:
    with Producer(mq, "tests") as producer:
        producer.send_batch([Message("t", b"x")] * count, queue=QUEUE)


def test_all_tasks_of_a_batch_take_one_plan_while_messages_come(mq: Connection, source: StreamSource) -> None:
    async def of_many() -> list[tuple[int, int]]:
        plans = await asyncio.gather(*(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")) for _ in range(20)))
        return [plan.ranges[QUEUE] for plan in plans]

    send(mq, 5)
    assert set(mq.run(of_many())) == {(0, 5)}
    send(mq, 5)
    assert set(mq.run(of_many())) == {(0, 5)}
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start"))).ranges[QUEUE] == (5, 10)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("other", 0, "start"))).ranges[QUEUE] == (0, 10)


def test_two_streams_of_one_query_that_have_one_name_are_refused(
    mq: Connection, admin: Admin, source: StreamSource
) -> None:
    """The second one would be given the messages of the first."""
    admin.create_topic("u", queues=1)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    other = replace(source, topics=("u",))
    with pytest.raises(InvalidInput, match="a name of its own for each stream"):
        mq.run(get_or_create_plan(mq, other, StreamBatch("q", 0, "start")))
    # A later start of the query may read other topics; what was planned before is read as it was planned.
    assert mq.run(get_or_create_plan(mq, other, StreamBatch("q", 0, "later"))).topics == {"t"}
    assert mq.run(get_or_create_plan(mq, other, StreamBatch("q", 1, "later"))).topics == {"u"}


def test_a_number_that_is_left_out_leaves_no_message_out(mq: Connection, source: StreamSource) -> None:
    """Some batches of Spark only tidy its state, and read nothing."""
    send(mq, 3)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    send(mq, 4)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 2, "start"))).ranges[QUEUE] == (3, 7)


def test_a_query_that_nobody_knows_does_not_begin_anew(mq: Connection, source: StreamSource) -> None:
    with pytest.raises(StreamBroken, match="has no plan of the query q"):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", 5, "start")))
    for number in range(4):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))
    with pytest.raises(StreamBroken, match="older than the batches with stored plans"):
        mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start")))


def test_a_plan_that_stands_is_refused_once_its_topic_is_another_one(
    mq: Connection, admin: Admin, source: StreamSource
) -> None:
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


def test_what_a_loss_of_power_took_is_told_though_other_messages_have_its_offsets(
    services: Services, mq: Connection, source: StreamSource
) -> None:
    send(mq, 5)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    store = services.brokers["broker-a"].core.store
    epochs = store._parts.epochs

    def lose_from(offset: int) -> None:
        """What an opening does that finds the log shorter than it was."""
        epochs.cut(int(store.entries("t", 0, offset, 1, written=True)[0][0]))
        store.epoch = epochs.current

    send(mq, 1)
    services.loop.run(on_the_loop(lambda: lose_from(5)))
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start"))).ranges[QUEUE] == (0, 5)
    services.loop.run(on_the_loop(lambda: lose_from(4)))
    for number in (0, 1):
        with pytest.raises(StreamBroken, match="power failure"):
            mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))


async def on_the_loop(call: Callable[[], None]) -> None:
    call()


def test_a_broker_that_restarts_is_waited_for_and_none_of_its_messages_left_out(
    services: Services, mq: Connection, source: StreamSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a watermark would pass by what it holds."""
    name = next(name for name in map(str, range(99)) if rendezvous_choice(name, services.brokers) == "broker-b")
    source = replace(source, stream=name, home=mq.run(ensure_coordinator(mq, STREAM_KIND, name)))
    assert source.home == "broker-b"
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


def test_while_the_home_of_the_plans_is_away_no_batch_goes_on_and_then_as_it_was_planned(
    services: Services, mq: Connection, source: StreamSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(mq, 3)
    mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start")))
    services.crash_broker(source.home)
    with monkeypatch.context() as patch:
        patch.setattr(batch_plans, "retry_while_unavailable", lambda attempt, *_: attempt())
        for number in (0, 1):
            with pytest.raises(BrokerUnavailable, match=source.home):
                mq.run(get_or_create_plan(mq, source, StreamBatch("q", number, "start")))
    services.start_broker(source.home)
    send(mq, 2)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 0, "start"))).ranges[QUEUE] == (0, 3)
    assert mq.run(get_or_create_plan(mq, source, StreamBatch("q", 1, "start"))).ranges[QUEUE] == (3, 5)
