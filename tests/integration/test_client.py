"""Test the client against real services over sockets, without Ray."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from raymq.actors.wire.frame import MAX_FRAME_BYTES
from raymq.client import (
    Admin,
    BrokerUnavailable,
    ClientClosed,
    Connection,
    GroupNotFound,
    InvalidInput,
    Message,
    MessageNotFound,
    MessageQueue,
    NotStored,
    OffsetOutOfRange,
    PermissionDenied,
    Producer,
    PullConsumer,
    QueueNotFound,
    ReceivedMessage,
    SendStatus,
    StoreCorrupt,
    TopicExists,
    TopicNotFound,
)
from tests.integration.conftest import Services
from tests.polling import poll_until
from tests.store_records import flip_byte, log_file

pytestmark = pytest.mark.integration


def test_sent_message_is_found_by_id_and_keys(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        message = Message("t", b"body", tags="paid", keys=["order-42", "x"], properties={"k": "v"})
        result = producer.send(message)
    assert result.status is SendStatus.SEND_OK
    assert result.unique_key == message.unique_key
    for found in (
        admin.query_by_id(result.message_id),
        admin.query_by_id(result.message_id.lower()),
        admin.query_by_unique_key("t", result.unique_key),
        admin.query_by_key("t", "order-42")[0],
    ):
        assert (found.body, found.tags, found.keys, found.properties) == (
            b"body",
            "paid",
            ["order-42", "x"],
            {"k": "v"},
        )
        assert (found.message_id, found.queue, found.queue_offset) == (result.message_id, result.queue, 0)
    assert admin.query_by_key("t", "order-4") == []
    with pytest.raises(MessageNotFound):
        admin.query_by_unique_key("t", "F" * 32)
    with pytest.raises(MessageNotFound):
        admin.query_by_id(result.message_id[:-16] + "0000000000000001")
    with pytest.raises(InvalidInput):
        admin.query_by_id("nonsense")
    with pytest.raises(BrokerUnavailable, match="no live broker of the cluster"):
        admin.query_by_id("7F000001" + "00000001" + "0" * 16)


def test_keys_are_found_newest_first_over_all_brokers(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    queues = PullConsumer(mq, "g").queues("t")
    sent = [producer.send(Message("t", b"%d" % n, keys="k"), queue=queues[n % 4]) for n in range(8)]
    found = admin.query_by_key("t", "k")
    assert sorted(int(message.body) for message in found) == list(range(8))
    times = [message.store_timestamp for message in found]
    assert times == sorted(times, reverse=True)
    assert len(admin.query_by_key("t", "k", limit=3)) == 3
    now = time.time()
    assert len(admin.query_by_key("t", "k", begin=now - 60, end=now)) == 8
    assert admin.query_by_key("t", "k", begin=now + 60) == []
    assert len({result.queue.broker for result in sent}) == 2


def test_topics_are_created_listed_and_deleted(mq: Connection, admin: Admin) -> None:
    admin.create_topic("t", queues=2)
    with pytest.raises(TopicExists):
        admin.create_topic("t", queues=3)
    with pytest.raises(InvalidInput):
        admin.create_topic("a/b")
    with pytest.raises(InvalidInput):
        admin.create_topic("u", queues=0)
    assert admin.topics() == ["t"]
    assert "SCHEDULE_TOPIC_XXXX" in admin.topics(system=True)
    assert len(admin.topic_stats("t")) == 4
    with pytest.raises(TopicNotFound):
        admin.topic_stats("none")
    Producer(mq, "p").send(Message("t", b"x"))
    admin.delete_topic("t")
    assert admin.topics() == []
    with pytest.raises(TopicNotFound):
        admin.delete_topic("t")
    admin.create_topic("t", queues=2)
    assert all(stats.max_offset == 0 for stats in admin.topic_stats("t").values())


def test_invalid_sends_are_refused(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    with pytest.raises(TopicNotFound):
        producer.send(Message("none", b"x"))
    for queue in (MessageQueue("t", "broker-a", 2), MessageQueue("t", "broker-z", 0), MessageQueue("u", "broker-a", 0)):
        with pytest.raises(QueueNotFound):
            producer.send(Message("t", b"x"), queue=queue)
    with pytest.raises(InvalidInput):
        producer.send_batch([])
    with pytest.raises(InvalidInput):
        producer.send_batch([Message("t", b"x"), Message("u", b"x")])
    with pytest.raises(InvalidInput):
        producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0), sharding_key="x")
    assert all(stats.max_offset == 0 for stats in admin.topic_stats("t").values())
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"x"))


def test_read_only_topic_raises_permission_denied(mq: Connection, admin: Admin) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"), queue=queue)
        admin.update_topic("t", permission=4)  # the producer's cached route still allows writes
        with pytest.raises(PermissionDenied):
            producer.send(Message("t", b"x"))
        for options in ({}, {"queue": queue}, {"sharding_key": "k"}):
            with pytest.raises(PermissionDenied):
                producer.send(Message("t", b"x"), **options)  # type: ignore[arg-type]
        with pytest.raises(QueueNotFound):
            producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 2))
        assert sum(stats.max_offset for stats in admin.topic_stats("t").values()) == 1
        admin.update_topic("t", permission=6)
        assert producer.send(Message("t", b"x"), queue=queue).queue_offset == 1


def test_largest_messages_and_large_batches(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p", timeout=30.0)
    largest = Message("t", b"x" * (4 << 20), properties={"p": "y" * 30_000})
    result = producer.send(largest)
    assert admin.query_by_id(result.message_id).body == largest.body
    messages = [Message("t", bytes([n % 256]) * 100_000) for n in range(200)]
    assert sum(len(message.body) for message in messages) > MAX_FRAME_BYTES
    results = producer.send_batch(messages)
    assert [r.unique_key for r in results] == [m.unique_key for m in messages]
    for message, sent in list(zip(messages, results, strict=True))[::37]:
        assert admin.query_by_id(sent.message_id).body == message.body
    assert sum(stats.max_offset for stats in admin.topic_stats("t").values()) == 201


def test_sharding_key_and_queue_argument_choose_queue(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    assert len({producer.send(Message("t", b"x"), sharding_key="customer-7").queue for _ in range(10)}) == 1
    queue = MessageQueue("t", "broker-b", 1)
    assert {producer.send(Message("t", b"x"), queue=queue).queue for _ in range(5)} == {queue}
    offsets = [producer.send(Message("t", b"x"), queue=queue).queue_offset for _ in range(5)]
    assert offsets == list(range(offsets[0], offsets[0] + 5))


def test_async_table_send_and_flush(mq: Connection, admin: Admin) -> None:
    async def send() -> None:
        async with Producer(mq, "p", linger=0.5) as producer:
            sent = await producer.asend_table("t", pa.table({"b": [b"0", b"1"]}), body="b")
            assert sent.rows == 2
            gathered = producer.send_async(Message("t", b"2"))
            assert await producer.aflush(10.0)
            assert gathered.done()
            assert gathered.result().status is SendStatus.SEND_OK

    asyncio.run(send())


def test_all_send_methods_store_messages(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    futures = [producer.send_async(Message("t", b"future")) for _ in range(5)]
    assert all(future.result(10).status is SendStatus.SEND_OK for future in futures)

    async def send() -> None:
        results = await asyncio.gather(*(producer.asend(Message("t", b"asyncio")) for _ in range(5)))
        assert len({result.message_id for result in results}) == 5
        assert len(await producer.asend_batch([Message("t", b"batch")] * 3)) == 3

    asyncio.run(send())
    producer.send_oneway(Message("t", b"oneway"))
    table = pa.table({"value": [b"row-%d" % n for n in range(1_000)], "id": [f"id-{n}" for n in range(1_000)]})
    result = producer.send_table("t", table, body="value", keys="id")
    assert (result.rows, sum(part[2] for part in result.parts)) == (1_000, 1_000)
    poll_until(lambda: sum(stats.max_offset for stats in admin.topic_stats("t").values()) == 1_014, 10)
    assert [message.body for message in admin.query_by_key("t", "id-577")] == [b"row-577"]


def test_pull_consumer_polls_seeks_and_commits(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    queue = MessageQueue("t", "broker-a", 1)
    sent = producer.send_batch([Message("t", b"%d" % n) for n in range(10)], queue=queue)
    with PullConsumer(mq, "g") as pull:
        assert queue in pull.queues("t")
        assert pull.offsets(queue) == (0, 10)
        assert (pull.committed(queue), pull.position(queue)) == (None, 0)
        first = pull.poll(queue, max_messages=4)
        assert [message.body for message in first] == [b"0", b"1", b"2", b"3"]
        assert [message.message_id for message in first] == [result.message_id for result in sent[:4]]
        assert pull.fetch_table(queue, max_messages=100)["offset"].to_pylist() == [4, 5, 6, 7, 8, 9]
        assert pull.poll(queue, timeout=0.05) == []
        pull.commit(queue, 7)
        pull.seek(queue, "earliest")
        assert len(pull.poll(queue, 100)) == 10
        pull.seek(queue, 11)
        with pytest.raises(OffsetOutOfRange) as caught:
            pull.poll(queue)
        assert (caught.value.offset, caught.value.min_offset, caught.value.max_offset) == (11, 0, 10)
        pull.seek_to_time(queue, time.time() + 60)
        assert pull.position(queue) == 10
        pull.seek_to_time(queue, 0.0)
        assert pull.position(queue) == 0
        nowhere = MessageQueue("t", "broker-a", 9)
        pull.seek(nowhere, 0)
        with pytest.raises(QueueNotFound):
            pull.poll(nowhere, timeout=0.1)
    with PullConsumer(mq, "g") as again:
        assert again.position(queue) == 7
    assert admin.group_progress("g")[queue].lag == 3


def test_waiting_poll_returns_at_arrival(mq: Connection, admin: Admin) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    pull = PullConsumer(mq, "g")
    found: list[list[ReceivedMessage]] = []
    thread = threading.Thread(target=lambda: found.append(pull.poll(queue, timeout=30.0)))
    thread.start()
    Producer(mq, "p").send(Message("t", b"now"), queue=queue)
    thread.join(10)
    assert [message.body for message in found[0]] == [b"now"]


def test_send_without_brokers_raises_not_stored(mq: Connection, services: Services, admin: Admin) -> None:
    producer = Producer(mq, "p", timeout=1.0)
    producer.send(Message("t", b"x"))
    for name in list(services.brokers):
        services.stop_broker(name)
    with pytest.raises(NotStored) as caught:
        producer.send(Message("t", b"x"))
    assert len(caught.value.attempts) > 3, "what reached nobody is repeated for the budget"
    assert {attempt.broker for attempt in caught.value.attempts} <= {"broker-a", "broker-b", None}
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), NotStored)
    with pytest.raises(BrokerUnavailable):
        PullConsumer(mq, "g").poll(MessageQueue("t", "broker-a", 0), timeout=0.2)


def test_send_to_queue_of_offline_broker_is_retriable(mq: Connection, services: Services, admin: Admin) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"), queue=queue)
        services.stop_broker("broker-a")  # it leaves the routes at once
        for _ in range(2):
            with pytest.raises(NotStored) as caught:
                producer.send(Message("t", b"x"), queue=queue, timeout=0.5)
            assert caught.value.retriable
        services.start_broker("broker-a")
        assert producer.send(Message("t", b"x"), queue=queue).queue_offset == 1


def test_unreachable_and_invalid_addresses_raise() -> None:
    with Connection(["127.0.0.1:1"]) as nowhere, pytest.raises(BrokerUnavailable):
        Admin(nowhere).topics()
    for bad in ([], ["host"], ["host:x"], ["host:70000"]):
        with pytest.raises(InvalidInput):
            Connection(bad)


def test_connection_survives_pickling_and_closes_its_clients(mq: Connection, admin: Admin) -> None:
    copy = pickle.loads(pickle.dumps(mq))
    producer = Producer(copy, "p")
    assert producer.send(Message("t", b"x")).status is SendStatus.SEND_OK
    copy.close()
    copy.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"x"))
    assert Admin(mq).topics() == ["t"]


def test_progress_of_unknown_group_raises_group_not_found(mq: Connection, admin: Admin) -> None:
    with pytest.raises(GroupNotFound):
        admin.group_progress("nobody")
    PullConsumer(mq, "g")
    assert all(found.lag is None for found in admin.group_progress("g").values())


def test_cluster_info_lists_brokers_and_servers(mq: Connection, services: Services, admin: Admin) -> None:
    info = admin.cluster_info()
    assert [(broker.name, broker.role, broker.state) for broker in info.brokers] == [
        ("broker-a", "master", "running"),
        ("broker-b", "master", "running"),
    ]
    assert info.name_servers[0].address == services.name_server.address
    assert info.scheduler.pid == 1


def test_sync_flush_precedes_answer(tmp_path: Path) -> None:
    services = Services(tmp_path, flush="sync")
    services.start()
    try:
        with Connection([services.name_server.address]) as mq:
            Admin(mq).create_topic("t", queues=1)
            producer = Producer(mq, "p")
            futures = [producer.send_async(Message("t", b"x")) for _ in range(50)]
            assert {future.result(10).status for future in futures} == {SendStatus.SEND_OK}
            for broker in services.brokers.values():
                assert broker.store.flushed_offset == broker.store.max_physical_offset
    finally:
        services.stop()


def test_flipped_bit_raises_store_corrupt_at_its_offset(mq: Connection, admin: Admin, services: Services) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p")
    producer.send_batch([Message("t", b"body-%d" % n * 9) for n in range(60)], queue=queue)
    log = log_file(services.directory / "broker-a")
    flip_byte(log, log.read_bytes().index(b"body-42") + 3)
    pull = PullConsumer(mq, "g")
    received: list[ReceivedMessage] = []
    while len(received) < 42:
        received += pull.poll(queue, 100, timeout=5.0)
    assert [message.queue_offset for message in received] == list(range(42))
    with pytest.raises(StoreCorrupt) as caught:
        pull.poll(queue, timeout=5.0)
    assert caught.value.file == str(log)
    with pytest.raises(StoreCorrupt) as of_table:
        pull.fetch_table(queue, timeout=5.0)
    assert (caught.value.queue_offset, of_table.value.queue_offset) == (42, 42)
    pull.seek(queue, 42 + 1)  # as in docs/consuming.md: one call passes over exactly the damaged message
    assert [message.queue_offset for message in pull.poll(queue, 100, timeout=5.0)] == list(range(43, 60))
