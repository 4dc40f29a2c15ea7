"""Test simple consumers against real services over real sockets, without Ray."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.client import (
    Admin,
    BrokerUnavailable,
    ClientClosed,
    Connection,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SimpleConsumer,
    Sql,
    SubscriptionMismatch,
    TopicNotFound,
)
from raymq.client.pop.pop_buffer import ReceiveCall
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


QUEUE = MessageQueue("t", "broker-a", 0)


def take(consumer: SimpleConsumer, count: int, **options: Any) -> list[ReceivedMessage]:
    """Receive until `count` messages have arrived."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        messages = consumer.receive(**{"max_messages": 32, "await_duration": 5.0, **options})
        assert messages, f"only {len(found)} of {count} came"
        found += messages
    return found


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


def _queues(pull: PullConsumer, topic: str) -> list[MessageQueue]:
    try:
        return pull.queues(topic)
    except TopicNotFound:
        return []


def test_members_share_messages_of_every_queue(mq: Connection, services: Services, admin: Admin) -> None:
    producer = Producer(mq, "p")
    sent = [b"%d" % n for n in range(60)]
    for n, body in enumerate(sent):
        producer.send(Message("t", body), queue=MessageQueue("t", f"broker-{'ab'[n % 2]}", n // 2 % 2))
    with (
        Connection([services.name_server.address]) as other,
        SimpleConsumer(mq, "g", {"t": "*"}) as one,
        SimpleConsumer(other, "g", {"t": "*"}) as two,
    ):
        found = take(one, 10, max_messages=10) + take(two, 10, max_messages=10)
        found += take(one, 20, max_messages=20) + take(two, 20)
        assert bodies(found) == sorted(sent)
        assert {message.queue for message in found} == set(PullConsumer(mq, "q").queues("t"))
        assert one.ack(found[::2])
        assert [two.ack(message) for message in found[1::2]] == [True] * 30
        assert one.receive(await_duration=0.0) == []
    progress = admin.group_progress("g")
    assert {found.lag for found in progress.values()} == {0}
    assert sum(found.committed_offset or 0 for found in progress.values()) == 60


def test_unacknowledged_message_is_redelivered(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send_batch([Message("t", b"%d" % n, keys="k", properties={"a": "b"}) for n in range(3)])
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        first = take(consumer, 3, invisible_duration=0.5)
        assert consumer.ack(first[0])
        assert consumer.receive(await_duration=0.05) == []
        begun = time.monotonic()
        second = take(consumer, 2)
        assert time.monotonic() - begun < 2.0, "redelivery wakes who waits"
        assert bodies(second) == bodies(first[1:])
        assert {message.reconsume_times for message in first} == {0}
        assert {message.reconsume_times for message in second} == {1}
        original = next(message for message in first if message.body == second[0].body)
        assert second[0].message_id == original.message_id
        assert (second[0].topic, second[0].keys, second[0].properties) == ("t", ["k"], {"a": "b"})
        assert not consumer.ack(original), "the handle of a former delivery"
        assert not consumer.change_invisible_duration(original, 60.0)
        assert not consumer.ack([*first, *second]), "some of them are stale"
        assert consumer.receive(await_duration=0.05) == [], "the others are done"
        assert not consumer.ack(second)


def test_change_invisible_duration_renews_receipt(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        (message,) = take(consumer, 1, invisible_duration=0.5)
        former = pickle.loads(pickle.dumps(message))
        assert consumer.change_invisible_duration(message, 30.0)
        assert not consumer.ack(former)
        assert consumer.receive(await_duration=1.0) == []
        assert consumer.change_invisible_duration(message, 0.2)
        (again,) = take(consumer, 1)
        assert again.reconsume_times == 1
        assert consumer.ack(pickle.loads(pickle.dumps(again))), "a handle travels"


def test_first_message_ends_receive_wait(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer, ThreadPoolExecutor(1) as pool:
        for broker in ("broker-a", "broker-b"):
            waiting = pool.submit(consumer.receive, 10, 30.0, 15.0)
            poll_until(lambda: len(consumer._pop_engine._notifications) == 4)
            begun = time.monotonic()
            producer.send(Message("t", b"x"), queue=MessageQueue("t", broker, 1))
            assert len(waiting.result(10)) == 1
            assert time.monotonic() - begun < 1.0
        begun = time.monotonic()
        assert consumer.receive(await_duration=0.3) == []
        assert 0.29 < time.monotonic() - begun < 2.0


def test_message_beyond_retry_limit_becomes_dead_letter(mq: Connection, admin: Admin) -> None:
    result = Producer(mq, "p").send(Message("t", b"bad", keys="k"))
    pull = PullConsumer(mq, "reader")
    with SimpleConsumer(mq, "g", {"t": "*"}, max_reconsume_times=2) as consumer:
        for times in range(3):
            (message,) = take(consumer, 1)
            assert message.reconsume_times == times
            # A receive with so short a lease might expire before the message reaches this consumer.
            assert consumer.change_invisible_duration(message, 0.05)
        (queue,) = poll_until(lambda: _queues(pull, "%DLQ%g"), 10)
        (dead,) = pull.poll(queue, timeout=5.0)
        assert (dead.topic, dead.message_id, dead.keys) == ("t", result.message_id, ["k"])
        assert consumer.receive(await_duration=0.3) == []

    def lags() -> set[int]:
        return {found.lag for q, found in admin.group_progress("g").items() if q.topic == "t"}

    poll_until(lambda: lags() == {0}, 10)  # the message is done once its dead letter is on the disk


def test_ordered_receive_waits_for_acknowledgement(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(6)], queue=QUEUE)
    with SimpleConsumer(mq, "g", {"t": "*"}, ordered=True) as consumer:
        first = consumer.receive(2, 10.0, 5.0)
        assert [message.body for message in first] == [b"0", b"1"]
        assert consumer.receive(2, await_duration=0.05) == []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.receive, 2, 0.3, 15.0)
            assert consumer.ack(first[0])
            begun = time.monotonic()
            assert consumer.ack(first[1])
            second = waiting.result(10)
            assert time.monotonic() - begun < 1.0, "the last acknowledgement wakes who waits"
        assert [message.body for message in second] == [b"2", b"3"]
        third = consumer.receive(3, 10.0, 5.0)
        assert [(message.body, message.reconsume_times) for message in third] == [(b"2", 1), (b"3", 1), (b"4", 0)]


def test_tags_are_filtered(mq: Connection, admin: Admin) -> None:
    tags = ["paid", "shipped", "open", "Aa", "BB", None]
    Producer(mq, "p").send_batch([Message("t", str(tag).encode(), tags=tag) for tag in tags])
    with SimpleConsumer(mq, "g", {"t": "paid || Aa"}) as consumer:
        assert bodies(take(consumer, 2)) == [b"Aa", b"paid"]
        assert consumer.receive(await_duration=0.05) == []


def test_receive_covers_all_topics_and_retry_topic(mq: Connection, admin: Admin) -> None:
    admin.create_topic("u", queues=1)
    producer = Producer(mq, "p")
    with SimpleConsumer(mq, "g", {"t": "*", "u": "*"}) as consumer:
        producer.send(Message("t", b"t"))
        producer.send(Message("u", b"u"))
        producer.send(Message("%RETRY%g", b"r"))
        messages = take(consumer, 3)
        assert bodies(messages) == [b"r", b"t", b"u"]
        assert consumer.ack(messages)


def test_asyncio_methods_receive_and_acknowledge(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send_batch([Message("t", b"a"), Message("t", b"b")])

    async def use() -> None:
        async with await asyncio.to_thread(SimpleConsumer, mq, "g", {"t": "*"}) as consumer:
            messages = await consumer.areceive(10, 30.0, 5.0)
            assert await consumer.achange_invisible_duration(messages[0], 60.0)
            assert await consumer.aack(messages)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.areceive(await_duration=30.0), 0.1)

    asyncio.run(use())
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        Producer(mq, "p").send(Message("t", b"c"))
        assert bodies(consumer.receive()) == [b"c"], "a receive that was given up has taken nothing"


def test_invalid_arguments_are_refused(mq: Connection, admin: Admin) -> None:
    with pytest.raises(InvalidInput):
        SimpleConsumer(mq, "g", {})
    with pytest.raises(InvalidInput):
        SimpleConsumer(mq, "a group", {"t": "*"})
    with pytest.raises(InvalidInput):
        SimpleConsumer(mq, "g", {"t": "*"}, max_reconsume_times=-1)
    with pytest.raises(TopicNotFound):
        SimpleConsumer(mq, "g", {"nowhere": "*"}, missing_topics="error")
    with pytest.raises(InvalidInput):
        SimpleConsumer(mq, "g", {"t": "*"}, missing_topics="ignore")
    producer = Producer(mq, "p")
    producer.send(Message("t", b"x"), queue=QUEUE)
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        for options in (
            {"max_messages": 0},
            {"invisible_duration": 0.0},
            {"invisible_duration": 12 * 3600.0 + 1},
            {"await_duration": -1.0},
            {"await_duration": float("nan")},
        ):
            with pytest.raises(InvalidInput):
                consumer.receive(**options)  # type: ignore[arg-type]
        (message,) = consumer.receive(invisible_duration=12 * 3600.0)
        for seconds in (0.0, -1.0, 12 * 3600.0 + 1):
            with pytest.raises(InvalidInput):
                consumer.change_invisible_duration(message, seconds)
        (pulled,) = PullConsumer(mq, "q").poll(QUEUE)
        with pytest.raises(InvalidInput):
            consumer.ack(pulled)
        assert consumer.ack([]), "of nothing"
        with pytest.raises(SubscriptionMismatch):
            SimpleConsumer(mq, "g", {"t": "other"})
    with pytest.raises(ClientClosed):
        consumer.receive()


def test_open_consumer_is_group_member(mq: Connection, services: Services, admin: Admin) -> None:
    consumer = SimpleConsumer(mq, "g", {"t": "*"})
    groups = services.brokers["broker-a"].groups
    assert len(groups.members("g")) == 1
    consumer.close()
    assert "g" not in groups.consumer_groups()


def test_restarted_broker_keeps_pending_acks(mq: Connection, services: Services, admin: Admin) -> None:
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(4)], queue=QUEUE)
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        messages = take(consumer, 4, invisible_duration=3.0)
        services.stop_broker("broker-a")
        services.start_broker("broker-a")
        assert consumer.ack(messages[:2])
        assert consumer.receive(await_duration=0.0) == []
        assert [message.body for message in take(consumer, 2)] == [b"2", b"3"]


def test_receive_needs_one_available_broker(mq: Connection, services: Services, admin: Admin) -> None:
    producer = Producer(mq, "p")
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        services.stop_broker("broker-b")
        producer.send(Message("t", b"x"), queue=QUEUE)
        assert bodies(consumer.receive()) == [b"x"]
        services.stop_broker("broker-a")
        with pytest.raises(BrokerUnavailable):
            consumer.receive(await_duration=0.2)
        services.start_broker("broker-a")
        producer.send(Message("t", b"y"), queue=QUEUE)
        assert bodies(take(consumer, 1)) == [b"y"]


def test_offset_reset_invalidates_receipt_handles(mq: Connection, services: Services, admin: Admin) -> None:
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(4)], queue=QUEUE)
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        before = take(consumer, 4)
        assert consumer.ack(before[0])

        async def reset() -> None:
            services.brokers["broker-a"].core.reset_offset("g", "t", 0, 1)

        services.loop.run(reset())
        after = take(consumer, 3)
        assert bodies(after) == [b"1", b"2", b"3"]
        assert [consumer.ack(message) for message in before] == [False] * 4
        assert consumer.ack(after)


def test_sql_filter_selects_messages(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        for price in range(1, 7):
            producer.send(Message("t", b"%d" % price, properties={"price": str(price)}))
    with SimpleConsumer(mq, "g", {"t": Sql("price > 4")}) as consumer:
        received: list[bytes] = []
        poll_until(lambda: received.extend(m.body for m in consumer.receive(await_duration=1.0)) or len(received) == 2)
        assert sorted(received) == [b"5", b"6"]
    with pytest.raises(InvalidInput):
        SimpleConsumer(mq, "g2", {"t": Sql("price >")})


def test_popped_but_unreceived_message_is_not_failed(mq: Connection, services: Services, admin: Admin) -> None:
    """Cover a regression: messages of an abandoned receive became dead letters undelivered."""
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(4)], queue=QUEUE)
    with SimpleConsumer(mq, "g", {"t": "*"}, max_reconsume_times=0) as consumer:
        popping = consumer._pop_engine

        async def pop_and_go() -> None:
            assert await popping._keep_popped(("broker-a", "t"), 4, 2_000) == 4

        mq.run(pop_and_go())
        lent = services.brokers["broker-a"].store.in_flight.queues["g", "t", 0].deliveries
        first = {each.pop_time_ms for each in lent.values()}
        poll_until(lambda: not first & {each.pop_time_ms for each in lent.values()}, what="they are renewed")
        messages = take(consumer, 4, invisible_duration=60.0)
        found = sorted((message.body, message.reconsume_times) for message in messages)
        assert found == [(b"%d" % n, 0) for n in range(4)]
        assert consumer.ack(messages)
    assert admin.dlq_list("g") == []


def test_receive_ignores_kept_messages_with_shorter_lease(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(4)], queue=QUEUE)
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        popping = consumer._pop_engine

        async def pop_for_another() -> None:
            assert await popping._keep_popped(("broker-a", "t"), 2, 3_000) == 2

        mq.run(pop_for_another())
        messages = consumer.receive(4, invisible_duration=600.0)
        assert [message.receipt.handle.invisible_ms for message in messages if message.receipt] == [600_000] * 2
        others = consumer.receive(4, invisible_duration=3.0)
        assert sorted(message.body for message in [*messages, *others]) == [b"0", b"1", b"2", b"3"]


def test_concurrent_pop_does_not_mark_broker_silent(mq: Connection, services: Services, admin: Admin) -> None:
    """Receive concurrently: a pending pop of another receive is no missing answer."""
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        assert consumer.receive(await_duration=0.0) == []
        popping = consumer._pop_engine
        sources = mq.run(popping._sources())

        async def while_others_ask() -> tuple[list[ReceivedMessage], int]:
            pending_pops = [asyncio.ensure_future(popping._ask_all([source], 1, 1_000)) for source in sources]
            await asyncio.sleep(0)
            silent = len(popping._silent(sources))
            found = await popping.receive(1, 1_000, 0.0, ReceiveCall())
            await asyncio.gather(*pending_pops)
            return found, silent

        assert mq.run(while_others_ask()) == ([], 0)


@pytest.mark.long
def test_hanging_broker_is_waited_for_once_for_all_topics(mq: Connection, services: Services, admin: Admin) -> None:
    """Cover a regression: each topic delayed the receive by a quarter of a second."""
    topics = [f"t{number}" for number in range(20)]
    for topic in topics:
        admin.create_topic(topic, queues=1)
    with SimpleConsumer(mq, "g", dict.fromkeys(topics, "*")) as consumer:
        assert consumer.receive(await_duration=0.0) == []
        server, go_on = services.brokers["broker-a"]._server, asyncio.Event()

        async def hang(*_: object) -> None:
            await go_on.wait()

        server.handlers = {**server.handlers, RequestCode.POP_MESSAGE: hang, RequestCode.NOTIFICATION: hang}
        Producer(mq, "p").send(Message("t7", b"x"), queue=MessageQueue("t7", "broker-b", 0))
        begun = time.monotonic()
        assert [message.body for message in consumer.receive(await_duration=0.0)] == [b"x"]
        assert time.monotonic() - begun < 3.0
        services.loop.loop.call_soon_threadsafe(go_on.set)


def test_closed_consumer_stops_popping(mq: Connection, services: Services, admin: Admin) -> None:
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        waiting = consumer._mq.submit(consumer._pop_engine.receive(1, 60_000, 30.0, ReceiveCall()))
        poll_until(lambda: len(consumer._pop_engine._notifications) == 4, what="it waits")
        pops: list[str] = []
        for name, broker in services.brokers.items():
            server = broker._server
            pop = server.handlers[RequestCode.POP_MESSAGE]

            def counting(connection, request, name=name, pop=pop):  # type: ignore[no-untyped-def]
                pops.append(name)
                return pop(connection, request)

            server.handlers = {**server.handlers, RequestCode.POP_MESSAGE: counting}
    with pytest.raises(ClientClosed):
        waiting.result(10)
    assert pops == []


def test_unreferenced_consumer_leaves_group(mq: Connection, services: Services, admin: Admin) -> None:
    """Cover a regression: it stayed a member, with hidden messages, until its connection ended."""
    groups = services.brokers["broker-a"].groups

    async def members() -> list[str]:
        return [client.client_id for client in groups.clients("g")]

    consumer = SimpleConsumer(mq, "g", {"t": "*"})
    assert consumer.receive(await_duration=0.1) == []
    assert len(services.loop.run(members())) == 1
    del consumer
    gc.collect()
    poll_until(lambda: not services.loop.run(members()), 10, "it has left")
    with SimpleConsumer(mq, "g", {"t": "*"}) as kept:
        assert len(services.loop.run(members())) == 1
        assert kept.receive(await_duration=0.1) == []
    poll_until(lambda: not services.loop.run(members()), 10, "a close is as before")
