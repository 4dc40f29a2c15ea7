"""The brokers' own `max_message_bytes`, as producers learn and keep it: real brokers in processes of their own."""

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
from tests.integration.foreign import Foreign

KIB = 1024
FILES = {"commitlog_file_bytes": 1 << 26, "index_slots": 1_000, "index_entries": 100_000}
QUEUE = MessageQueue("t", "a", 0)
#: Parts are of 4 MiB: so many bodies of 1 KiB are several.
MANY = 6_000


@contextmanager
def broker(directory: Path, **store: object) -> Iterator[tuple[BrokerProcess, Connection]]:
    """A broker and a connection to it that knows no route yet; the topic t has one queue."""
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
    with broker(tmp_path, max_message_bytes=KIB) as (_, mq):
        yield mq


def stored(mq: Connection) -> int:
    with PullConsumer(mq, "reader") as pull:
        return pull.offsets(QUEUE)[1]


def names_limit_and_remedy(error: BaseException | None) -> bool:
    return isinstance(error, InvalidInput) and "1024 bytes" in str(error) and "raise max_message_bytes" in str(error)


@pytest.mark.parametrize("idempotent", [False, True])
def test_nothing_of_a_table_is_sent_if_its_last_row_is_longer_than_the_brokers_allow(
    small: Connection, idempotent: bool
) -> None:
    table = pa.table({"b": [bytes([1]) * KIB] * MANY + [bytes(KIB + 1)]})
    with Producer(small, "p", idempotent=idempotent) as producer:
        with pytest.raises(InvalidInput) as caught:
            producer.send_table("t", table, body="b")
        assert names_limit_and_remedy(caught.value)
        assert stored(small) == 0
        assert producer.send_table("t", table.slice(0, MANY), body="b").rows == MANY
        assert stored(small) == MANY


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_of_a_batch_is_sent_if_its_last_body_is_longer_than_the_brokers_allow(
    small: Connection, asynchronous: bool
) -> None:
    messages = [Message("t", bytes(KIB)) for _ in range(MANY)]
    with Producer(small, "p") as producer:
        wrong = [*messages, Message("t", bytes(KIB + 1))]
        with pytest.raises(InvalidInput) as caught:
            asyncio.run(producer.asend_batch(wrong)) if asynchronous else producer.send_batch(wrong)
        assert names_limit_and_remedy(caught.value)
        assert stored(small) == 0
        assert len(producer.send_batch(messages)) == MANY
        assert stored(small) == MANY


def test_a_single_message_that_is_too_long_is_refused_with_limit_and_remedy(small: Connection) -> None:
    with Producer(small, "p") as producer:
        with pytest.raises(InvalidInput) as caught:
            producer.send(Message("t", bytes(KIB + 1)))
        assert names_limit_and_remedy(caught.value)
        assert producer.send(Message("t", bytes(KIB))).queue_offset == 0


@pytest.mark.parametrize("options", [{}, {"queue": QUEUE}, {"sharding_key": "k"}], ids=["any", "queue", "key"])
@pytest.mark.parametrize("learnt", [False, True])
def test_a_long_body_among_gathered_messages_fails_alone(
    small: Connection, options: dict[str, object], learnt: bool
) -> None:
    """Also in the first batch of all, when no limit is known yet."""
    with Producer(small, "p", linger=3.0) as producer:
        if learnt:
            producer.send(Message("t", b"first"))
        sizes = [1, KIB + 1, KIB, 2 * KIB, 5]
        sent = [producer.send_async(Message("t", bytes(size)), **options) for size in sizes]  # type: ignore[arg-type]
        assert producer.flush()
        assert [names_limit_and_remedy(each.exception(5)) for each in sent] == [size > KIB for size in sizes]
        places = [each.result().queue_offset for each in sent if each.exception() is None]
    assert places == [learnt + place for place in range(3)]
    assert stored(small) == learnt + 3


def test_gathered_messages_that_are_all_too_long_have_each_its_error(small: Connection) -> None:
    with Producer(small, "p", linger=3.0) as producer:
        producer.send(Message("t", b"first"))
        sent = [producer.send_async(Message("t", bytes(size))) for size in (2_000, 3_000)]
        assert producer.flush()
        assert [each.exception().actual for each in sent] == [2_000, 3_000]  # type: ignore[union-attr]


def test_a_limit_that_was_lowered_meanwhile_costs_no_innocent_message(tmp_path: Path) -> None:
    """The route is young and tells the limit of before."""
    with broker(tmp_path, max_message_bytes=8 * KIB) as (_, mq), Producer(mq, "p", linger=3.0) as producer:
        producer.send(Message("t", bytes(8 * KIB)))
        route = mq.routes.known("t")
        assert route is not None
        route.body_limits["a"] = 1 << 20  # as it was told before the broker came back with a lower one
        sent = [producer.send_async(Message("t", bytes(size))) for size in (1, 9 * KIB, 2)]
        assert producer.flush()
        assert [each.exception(5) is None for each in sent] == [True, False, True]


def test_only_who_asks_is_told_the_limit(small: Connection) -> None:
    """RocketMQ's clients get the route that RocketMQ's name server would give them."""
    with Foreign(small.name_servers[0]) as client:
        for asked in ({}, {"raymqLimits": "true"}):
            answer = client.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t", **asked}))
            (data,) = json.loads(bytes(answer.body))["brokerDatas"]
            assert data.pop("raymqMaxMessageBytes", None) == (KIB if asked else None)
            assert sorted(data) == ["brokerAddrs", "brokerName", "cluster", "enableActingMaster"]


def test_a_batch_whose_brokers_cannot_be_asked_ends_within_its_budget(tmp_path: Path) -> None:
    with Connection(["127.0.0.1:1"]) as mq, Producer(mq, "p", timeout=1.0) as producer, pytest.raises(NotStored):
        producer.send_batch([Message("t", bytes(KIB)) for _ in range(MANY)])
