"""Test how producers learn and apply the brokers' `max_message_bytes`, with brokers in separate processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import InvalidInput, NotStored
from tests.broker_process import BrokerProcess
from tests.integration.foreign_client import ForeignClient

KIB = 1024
FILES = {"commitlog_file_bytes": 1 << 26, "index_slots": 1_000, "index_entries": 100_000}
QUEUE = MessageQueue("t", "a", 0)
#: A part has 4 MiB: this many bodies of 1 KiB make several parts.
MANY = 6_000


@contextmanager
def running_broker(directory: Path, **store: object) -> Iterator[tuple[BrokerProcess, Connection]]:
    """Yield a broker and a connection without routes; the topic t has one queue."""
    process = BrokerProcess("a", directory, store=FILES | store)
    try:
        with Connection([process.name_server]) as mq, Admin(mq) as admin:
            admin.create_topic("t", queues=1)
        with Connection([process.name_server]) as mq:
            yield process, mq
    finally:
        process.stop()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Connection]:
    with running_broker(tmp_path, max_message_bytes=KIB) as (_, mq):
        yield mq


def count_stored(mq: Connection) -> int:
    with PullConsumer(mq, "reader") as pull:
        return pull.offsets(QUEUE)[1]


def names_limit_and_remedy(error: BaseException | None) -> bool:
    return isinstance(error, InvalidInput) and "1024 bytes" in str(error) and "raise max_message_bytes" in str(error)


@pytest.mark.parametrize("idempotent", [False, True])
def test_table_with_oversized_last_row_sends_no_row(small: Connection, idempotent: bool) -> None:
    table = pa.table({"b": [bytes([1]) * KIB] * MANY + [bytes(KIB + 1)]})
    with Producer(small, "p", idempotent=idempotent) as producer:
        with pytest.raises(InvalidInput) as caught:
            producer.send_table("t", table, body="b")
        assert names_limit_and_remedy(caught.value)
        assert count_stored(small) == 0
        assert producer.send_table("t", table.slice(0, MANY), body="b").rows == MANY
        assert count_stored(small) == MANY


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batch_with_oversized_last_body_sends_no_message(small: Connection, asynchronous: bool) -> None:
    messages = [Message("t", bytes(KIB)) for _ in range(MANY)]
    with Producer(small, "p") as producer:
        wrong = [*messages, Message("t", bytes(KIB + 1))]
        with pytest.raises(InvalidInput) as caught:
            asyncio.run(producer.asend_batch(wrong)) if asynchronous else producer.send_batch(wrong)
        assert names_limit_and_remedy(caught.value)
        assert count_stored(small) == 0
        assert len(producer.send_batch(messages)) == MANY
        assert count_stored(small) == MANY


def test_oversized_message_error_names_limit_and_remedy(small: Connection) -> None:
    with Producer(small, "p") as producer:
        with pytest.raises(InvalidInput) as caught:
            producer.send(Message("t", bytes(KIB + 1)))
        assert names_limit_and_remedy(caught.value)
        assert producer.send(Message("t", bytes(KIB))).queue_offset == 0


@pytest.mark.parametrize("options", [{}, {"queue": QUEUE}, {"sharding_key": "k"}], ids=["any", "queue", "key"])
@pytest.mark.parametrize("learnt", [False, True])
def test_oversized_body_among_gathered_messages_fails_alone(
    small: Connection, options: dict[str, object], learnt: bool
) -> None:
    """The limit is also kept by the first batch, when it is not known yet."""
    with Producer(small, "p", linger=3.0) as producer:
        if learnt:
            producer.send(Message("t", b"first"))
        sizes = [1, KIB + 1, KIB, 2 * KIB, 5]
        sent = [producer.send_async(Message("t", bytes(size)), **options) for size in sizes]  # type: ignore[arg-type]
        assert producer.flush()
        assert [names_limit_and_remedy(each.exception(5)) for each in sent] == [size > KIB for size in sizes]
        places = [each.result().queue_offset for each in sent if each.exception() is None]
    assert places == [learnt + place for place in range(3)]
    assert count_stored(small) == learnt + 3


def test_oversized_gathered_messages_fail_with_their_sizes(small: Connection) -> None:
    with Producer(small, "p", linger=3.0) as producer:
        producer.send(Message("t", b"first"))
        sent = [producer.send_async(Message("t", bytes(size))) for size in (2_000, 3_000)]
        assert producer.flush()
        assert [each.exception().actual for each in sent] == [2_000, 3_000]  # type: ignore[union-attr]


def test_lowered_limit_fails_only_oversized_messages(tmp_path: Path) -> None:
    """The cached route still has the earlier limit."""
    with running_broker(tmp_path, max_message_bytes=8 * KIB) as (_, mq), Producer(mq, "p", linger=3.0) as producer:
        producer.send(Message("t", bytes(8 * KIB)))
        route = mq.routes.known("t")
        assert route is not None
        route.body_limits["a"] = 1 << 20  # the limit before the broker restarted with a lower one
        sent = [producer.send_async(Message("t", bytes(size))) for size in (1, 9 * KIB, 2)]
        assert producer.flush()
        assert [each.exception(5) is None for each in sent] == [True, False, True]


def test_route_contains_limit_only_on_request(small: Connection) -> None:
    """RocketMQ's clients get the same route as from RocketMQ's name server."""
    with ForeignClient(small.name_servers[0]) as client:
        for fields in ({}, {"raymqLimits": "true"}):
            answer = client.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t", **fields}))
            (data,) = json.loads(bytes(answer.body))["brokerDatas"]
            assert data.pop("raymqMaxMessageBytes", None) == (KIB if fields else None)
            assert sorted(data) == ["brokerAddrs", "brokerName", "cluster", "enableActingMaster"]


def test_batch_to_unreachable_brokers_ends_at_timeout(tmp_path: Path) -> None:
    with Connection(["127.0.0.1:1"]) as mq, Producer(mq, "p", timeout=1.0) as producer, pytest.raises(NotStored):
        producer.send_batch([Message("t", bytes(KIB)) for _ in range(MANY)])
