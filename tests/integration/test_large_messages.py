"""Test messages above 4 MiB on brokers that allow them: all send methods, all read methods, all copies."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raymq.actors.wire import frame
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import LENGTH, MAX_FRAME_BYTES, MESSAGE_FRAME_BYTES, Command, frame_bytes
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, PullMessage
from raymq.actors.wire.headers.send_headers import SendMessage
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from raymq.client.bulk.range_reader import RangeReader
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.errors import InvalidInput, NotStored
from raymq.client.produce.outbox_file import OutboxFile
from raymq.storage.records.message_limits import MAX_MESSAGE_BYTES
from raymq.storage.records.record import encode, encode_properties
from tests import staged_rows
from tests.broker_process import BrokerProcess
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until

MIB = 1 << 20
LIMIT = 20 * MIB
STORE: dict[str, Any] = {
    "max_message_bytes": LIMIT,
    "commitlog_file_bytes": 64 * MIB,
    "index_slots": 1_000,
    "index_entries": 100_000,
    "delay_levels": "1s 1s 1s 1s",
}
#: An incompressible body, and one that compresses well.
NOISE = random.Random(1).randbytes(LIMIT - 1)
TEXT = b"all work and no play " * (LIMIT // 21 + 1)
TEXT = TEXT[: LIMIT - 1]
SMALL = b"small"
TOO_LONG = bytes(LIMIT + 1)
#: A timeout that holds on a machine under load.
SECONDS = 60.0

Ways = dict[str, Callable[[Connection, str, bytes], None]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess("a", tmp_path_factory.mktemp("large"), store=STORE, append_wait_ms=5_000)
    yield process
    process.stop()


@pytest.fixture
def mq(process: BrokerProcess) -> Iterator[Connection]:
    """Yield a connection without routes."""
    with Connection([process.name_server]) as mq:
        yield mq


@pytest.fixture
def topic(process: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a topic of one queue that only this test uses."""
    name = f"t{zlib.crc32(request.node.name.encode()):08x}"
    with Connection([process.name_server]) as mq:
        Admin(mq).create_topic(name, queues=1)
        yield name
        Admin(mq).delete_topic(name)


def queue_of(topic: str) -> MessageQueue:
    return MessageQueue(topic, "a", 0)


def count_stored(mq: Connection, topic: str) -> int:
    with PullConsumer(mq, "counter") as pull:
        return pull.offsets(queue_of(topic))[1]


def read_bodies(mq: Connection, topic: str, count: int) -> list[bytes]:
    """Read the bodies of a queue with a pull consumer."""
    found: list[bytes] = []
    with PullConsumer(mq, "reader") as pull:
        pull.seek(queue_of(topic), "earliest")
        poll_until(
            lambda: found.extend(m.body for m in pull.poll(queue_of(topic), 100, 1.0)) or len(found) >= count, SECONDS
        )
    return found


# -- sending -------------------------------------------------------------------------------------------------------


def make_send(**options: Any) -> Callable[[Connection, str, bytes], None]:
    def way(mq: Connection, topic: str, body: bytes) -> None:
        with Producer(mq, "p", timeout=SECONDS, **options) as producer:
            producer.send(Message(topic, body))

    return way


def send_with_asend(mq: Connection, topic: str, body: bytes) -> None:
    with Producer(mq, "p", timeout=SECONDS) as producer:
        asyncio.run(producer.asend(Message(topic, body)))


def make_send_async(**options: Any) -> Callable[[Connection, str, bytes], None]:
    def way(mq: Connection, topic: str, body: bytes) -> None:
        with Producer(mq, "p", timeout=SECONDS, **options) as producer:
            producer.send_async(Message(topic, body)).result(SECONDS)

    return way


def send_one_way(mq: Connection, topic: str, body: bytes) -> None:
    before = count_stored(mq, topic)
    with Producer(mq, "p", timeout=SECONDS) as producer:
        producer.send_oneway(Message(topic, body))
    poll_until(lambda: count_stored(mq, topic) > before, SECONDS)


def send_as_batch(mq: Connection, topic: str, body: bytes) -> None:
    with Producer(mq, "p", timeout=SECONDS) as producer:
        producer.send_batch([Message(topic, body)])


def send_as_table(mq: Connection, topic: str, body: bytes) -> None:
    with Producer(mq, "p", timeout=SECONDS) as producer:
        producer.send_table(topic, pa.table({"b": pa.array([body])}), body="b")


def send_staged(mq: Connection, topic: str, body: bytes) -> None:
    """Send with a staged write, as Spark's tasks do."""
    record = encode(topic, 0, body, encode_properties({"n": "1"}), born_timestamp_ms=1, born_host=("127.0.0.1", 0))
    write = StagedWrite.open(mq, topic, {"a"})
    assert isinstance(write, StagedWrite)
    with StagedWriter(mq.name_servers) as writer:
        sizes = np.array([len(record)], np.int32)
        staged_rows.send_chunk(writer, write, "part", 0, queue_of(topic), record, sizes)
    assert write.commit([("part", "a", 1)]) == CommittedWrite(write.transaction, 1)


WAYS_IN: Ways = {
    "send": make_send(),
    "idempotent": make_send(idempotent=True),
    "asend": send_with_asend,
    "send_async": make_send_async(),
    "gathered": make_send_async(linger=0.01),
    "send_oneway": send_one_way,
    "send_batch": send_as_batch,
    "send_table": send_as_table,
    "staged": send_staged,
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_all_send_methods_apply_body_limit_of_broker(mq: Connection, topic: str, way: str, tmp_path: Path) -> None:
    """The limit is also kept by the first call of a connection, when it is not known yet."""
    body = NOISE if len(way) % 2 else TEXT
    with pytest.raises(InvalidInput) as caught:
        WAYS_IN[way](mq, topic, TOO_LONG)
    assert (caught.value.field, caught.value.actual) == ("body", LIMIT + 1)
    assert f"1 to {LIMIT} bytes" in str(caught.value)
    assert "raise max_message_bytes" in str(caught.value)
    assert count_stored(mq, topic) == 0
    with Connection(mq.name_servers) as other:
        WAYS_IN[way](other, topic, body)
    assert read_bodies(mq, topic, 1) == [body]


def test_only_oversized_messages_of_a_mix_fail(mq: Connection, topic: str) -> None:
    with Producer(mq, "p", timeout=SECONDS, linger=0.05) as producer:
        sent = [producer.send_async(Message(topic, body)) for body in (SMALL, NOISE, TOO_LONG, SMALL)]
        wait(sent, SECONDS)
        assert [type(each.exception()) for each in sent] == [type(None), type(None), InvalidInput, type(None)]
        with pytest.raises(InvalidInput):
            producer.send_batch([Message(topic, body) for body in (SMALL, TOO_LONG)])
        producer.send_batch([Message(topic, body) for body in (b"1", TEXT, b"2")])
    assert sorted(read_bodies(mq, topic, 6)) == sorted([SMALL, SMALL, NOISE, b"1", TEXT, b"2"])


def test_message_over_absolute_limit_is_refused_at_creation(mq: Connection, topic: str) -> None:
    Message(topic, bytes(MAX_MESSAGE_BYTES))
    with pytest.raises(InvalidInput, match=f"max_message_bytes .*; got {MAX_MESSAGE_BYTES + 1}"):
        Message(topic, bytes(MAX_MESSAGE_BYTES + 1))
    with Producer(mq, "p") as producer, pytest.raises(InvalidInput, match="max_message_bytes"):
        producer.send_table(topic, pa.table({"b": [bytes(MAX_MESSAGE_BYTES + 1)]}), body="b")


def test_rocketmq_clients_send_and_pull_large_messages(mq: Connection, topic: str) -> None:
    address = Admin(mq).cluster_info().brokers[0].address
    assert address is not None
    properties = encode_properties({"n": "1"}).decode()
    with ForeignClient(address) as client:
        client.done(SendMessage("p", topic, "TBW102", 4, 0, 0, 1, 0, properties).command(NOISE))
        client.done(SendMessage("p", topic, "TBW102", 4, 0, 0x1, 1, 0, properties).command(zlib.compress(TEXT, 1)))
        refused = client.ask(SendMessage("p", topic, "TBW102", 4, 0, 0, 1, 0, properties).command(TOO_LONG), SECONDS)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"1 to {LIMIT} bytes" in str(refused.remark)
        client.done(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "java"}'))
        pull = PullMessage("java", topic, 0, 0, 32, HAS_SUBSCRIPTION, subscription="*").command()
        answer = client.ask(pull, SECONDS)
        assert (answer.code, NOISE in bytes(answer.body)) == (ResponseCode.SUCCESS, True)
    assert read_bodies(mq, topic, 2) == [NOISE, TEXT]
    with PullConsumer(mq, "tables") as consumer:
        consumer.seek(queue_of(topic), "earliest")
        rows: list[bytes] = []
        while len(rows) < 2:
            rows += consumer.fetch_table(queue_of(topic), timeout=SECONDS)["body"].to_pylist()
    assert rows == [NOISE, TEXT]


# -- reading -------------------------------------------------------------------------------------------------------


def read_by_poll(mq: Connection, topic: str, count: int) -> list[bytes]:
    return read_bodies(mq, topic, count)


def read_as_tables(mq: Connection, topic: str, count: int) -> list[bytes]:
    rows: list[bytes] = []
    with PullConsumer(mq, "tables") as consumer:
        consumer.seek(queue_of(topic), "earliest")
        while len(rows) < count:
            rows += consumer.fetch_table(queue_of(topic), timeout=SECONDS)["body"].to_pylist()
    return rows


def read_as_range(mq: Connection, topic: str, count: int) -> list[bytes]:
    """Read a range, as Spark's tasks do."""
    with RangeReader(mq.name_servers) as reader:
        return [body for table in reader.table(queue_of(topic), 0, count) for body in table["body"].to_pylist()]


def read_by_push(mq: Connection, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []

    def listener(messages: Any) -> ConsumeResult:
        found.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "pushed", {topic: "*"}, listener, ordered=True):
        poll_until(lambda: len(found) >= count, SECONDS)
    return found


def read_by_pop(mq: Connection, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with SimpleConsumer(mq, "popped", {topic: "*"}) as consumer:
        while len(found) < count:
            for message in consumer.receive(10, 120.0, 5.0):
                consumer.ack(message)
                found.append(message.body)
    return found


def read_by_id(mq: Connection, topic: str, count: int) -> list[bytes]:
    with PullConsumer(mq, "ids") as consumer:
        ids = []
        consumer.seek(queue_of(topic), "earliest")
        while len(ids) < count:
            ids += [message.message_id for message in consumer.poll(queue_of(topic), 100, 5.0)]
    return [Admin(mq).query_by_id(each).body for each in ids]


def read_by_key(mq: Connection, topic: str, count: int) -> list[bytes]:
    """Read by key, one message at a time: an answer is full at 15 MiB, or with one message."""

    def found(number: int) -> list[bytes]:
        return [message.body for message in Admin(mq).query_by_key(topic, f"k{number}")]

    return [poll_until(lambda number=number: found(number), SECONDS)[0] for number in range(count)]  # type: ignore[misc]


WAYS_OUT = {
    "poll": read_by_poll,
    "fetch_table": read_as_tables,
    "a range": read_as_range,
    "push": read_by_push,
    "pop": read_by_pop,
    "by id": read_by_id,
    "by key": read_by_key,
}


@pytest.fixture(scope="module")
def lowered_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker with long messages in the topic t, whose lowered limit no longer allows them."""
    directory = tmp_path_factory.mktemp("lowered")
    process = BrokerProcess("a", directory, store=STORE, append_wait_ms=5_000)
    with Connection([process.name_server]) as mq, Producer(mq, "p", timeout=SECONDS) as producer:
        Admin(mq).create_topic("t", queues=1)
        for number, body in enumerate((SMALL, NOISE, TEXT, SMALL)):
            producer.send(Message("t", body, keys=f"k{number}"))
    process.stop()
    process = BrokerProcess("a", directory, store={**STORE, "max_message_bytes": 4 * MIB})
    yield process
    process.stop()


@pytest.mark.parametrize("way", WAYS_OUT)
def test_all_read_methods_return_messages_over_lowered_limit(lowered_broker: BrokerProcess, way: str) -> None:
    with Connection([lowered_broker.name_server]) as mq:
        found = WAYS_OUT[way](mq, "t", 4)
    assert found == [SMALL, NOISE, TEXT, SMALL]


@pytest.mark.parametrize("way", WAYS_IN)
def test_all_send_methods_learn_lowered_limit(lowered_broker: BrokerProcess, way: str) -> None:
    with Connection([lowered_broker.name_server]) as mq:
        before = count_stored(mq, "t")
        with pytest.raises(InvalidInput, match=f"1 to {4 * MIB} bytes; got {LIMIT - 1}"):
            WAYS_IN[way](mq, "t", NOISE)
        assert count_stored(mq, "t") == before


# -- copies --------------------------------------------------------------------------------------------------------


def test_delayed_retried_and_dead_copies_are_complete(mq: Connection, topic: str) -> None:
    seen: list[tuple[int, bytes]] = []

    def refuse(messages: Any) -> ConsumeResult:
        seen.extend((message.reconsume_times, message.body) for message in messages)
        return ConsumeResult.RECONSUME_LATER

    group, admin = f"g-{topic}", Admin(mq)
    with Producer(mq, "p", timeout=SECONDS) as producer:
        producer.send(Message(topic, NOISE, delay_level=1))
        producer.send(Message(topic, TEXT, deliver_at=time.time() + 0.5))
    with PushConsumer(mq, group, {topic: "*"}, refuse, max_reconsume_times=1):
        dead = poll_until(lambda: _dead_letters(admin, group, 2), SECONDS)
    assert sorted(seen) == sorted([(0, NOISE), (0, TEXT), (1, NOISE), (1, TEXT)])
    assert sorted(message.body for message in dead) == sorted([NOISE, TEXT])
    assert len(admin.dlq_redrive(group).redriven) == 2
    with PushConsumer(mq, group, {topic: "*"}, lambda messages: ConsumeResult.SUCCESS) as consumer:
        poll_until(lambda: not _lag(admin, group), SECONDS)
        assert consumer is not None


def _dead_letters(admin: Admin, group: str, count: int) -> list[Any]:
    try:
        found = admin.dlq_list(group)
    except Exception:  # noqa: BLE001 - there is no dead letter yet
        return []
    return found if len(found) == count else []


def _lag(admin: Admin, group: str) -> int:
    return sum(progress.lag or 0 for progress in admin.group_progress(group).values())


def test_large_popped_message_is_redelivered(mq: Connection, topic: str) -> None:
    with Producer(mq, "p", timeout=SECONDS) as producer:
        producer.send(Message(topic, NOISE))
    with SimpleConsumer(mq, f"g-{topic}", {topic: "*"}) as consumer:
        (first,) = consumer.receive(10, 10.0, SECONDS)
        assert consumer.change_invisible_duration(first, 0.1)
        (again,) = consumer.receive(10, 60.0, SECONDS)
        assert (again.body, again.reconsume_times) == (NOISE, 1)
        consumer.ack(again)


def test_outbox_sets_aside_message_over_lowered_limit(tmp_path: Path) -> None:
    process = BrokerProcess("a", tmp_path, store=STORE)
    file = tmp_path / "outbox"
    try:
        with (
            Connection([process.name_server]) as mq,
            Producer(mq, "p", timeout=SECONDS, outbox=file) as producer,
        ):
            Admin(mq).create_topic("t", queues=1)
            producer.send(Message("t", b"first"))
            process.kill()
            for body in (NOISE, b"last"):
                with pytest.raises(NotStored) as caught:
                    producer.send(Message("t", body), timeout=0.3, retries=0)
                assert caught.value.kept
        process = BrokerProcess("a", tmp_path, store={**STORE, "max_message_bytes": 4 * MIB})
        with Connection([process.name_server]) as mq:
            with Producer(mq, "p", timeout=SECONDS, outbox=file):
                poll_until(lambda: _outbox_states(file) == ["refused"], SECONDS)
            assert read_bodies(mq, "t", 2) == [b"first", b"last"]
        process.stop()
        process = BrokerProcess("a", tmp_path, store=STORE)
        kept = OutboxFile(file)
        assert kept.retry(kept.batches()[0].id)
        kept.close()
        with Connection([process.name_server]) as mq:
            with Producer(mq, "p", timeout=SECONDS, outbox=file):
                poll_until(lambda: _outbox_states(file) == [], SECONDS)
            assert read_bodies(mq, "t", 3) == [b"first", b"last", NOISE]
    finally:
        process.stop()


def _outbox_states(file: Path) -> list[str]:
    outbox = OutboxFile(file, read_only=True)
    states = [batch.state for batch in outbox.batches()]
    outbox.close()
    return states


# -- frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [4 * MIB, LIMIT])
def test_frame_over_configured_length_closes_connection(
    process: BrokerProcess, lowered_broker: BrokerProcess, setting: int
) -> None:
    broker = process if setting == LIMIT else lowered_broker
    most = frame_bytes(setting)
    assert most == {4 * MIB: MAX_FRAME_BYTES, LIMIT: 32 * MIB}[setting] < MESSAGE_FRAME_BYTES
    with Connection([broker.name_server]) as mq:
        address = Admin(mq).cluster_info().brokers[0].address
    assert address is not None
    unknown = Command(40_000)
    with ForeignClient(address) as client:
        unknown.opaque, unknown.language = 1, "JAVA"
        unknown.body = bytes(most - len(frame.encode(unknown)) + LENGTH.size)
        assert client.ask(unknown, SECONDS).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(struct.pack(">i", most + 1))
        assert connection.recv(1) == b"", "closed"
