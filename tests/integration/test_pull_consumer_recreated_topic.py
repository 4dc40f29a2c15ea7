"""Test pull consumers of a topic that is deleted and recreated, so that offsets name other messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import OffsetOutOfRange
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def send(mq: Connection, prefix: str, count: int) -> None:
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message("t", f"{prefix}{number}".encode()), queue=QUEUE)


def recreate_topic(services: Services) -> None:
    """Recreate the topic, as another program does."""
    with Connection([services.name_server.address]) as other:
        admin = Admin(other)
        admin.delete_topic("t")
        admin.create_topic("t", queues=2)
        send(other, "new", 8)


@pytest.mark.parametrize(
    "read",
    [
        lambda pull: pull.poll(QUEUE, 10),
        lambda pull: pull.fetch_table(QUEUE, 10),
        lambda pull: asyncio.run(pull.apoll(QUEUE, 10)),
    ],
    ids=["poll", "fetch_table", "apoll"],
)
@pytest.mark.parametrize("sought", [True, False])
def test_messages_of_recreated_topic_are_not_skipped(
    services: Services, mq: Connection, admin: Admin, read: Callable[[PullConsumer], Any], sought: bool
) -> None:
    """Cover a regression: reading continued at offset 5 and skipped five of eight messages."""
    del admin
    send(mq, "old", 5)
    with PullConsumer(mq, "g") as pull:
        if sought:
            pull.seek(QUEUE, 0)
        assert len(read(pull)) == 5
        pull.commit(QUEUE, 5)
        recreate_topic(services)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange):
                read(pull)
        with pytest.raises(OffsetOutOfRange):
            pull.commit(QUEUE, 6)
        pull.seek(QUEUE, "earliest")
        assert [message.body for message in pull.poll(QUEUE, 10)] == [b"new%d" % number for number in range(8)]
        pull.commit(QUEUE, 8)
        assert pull.committed(QUEUE) == 8


@pytest.mark.parametrize(
    "seek",
    [
        lambda pull: pull.seek(QUEUE, "latest"),
        lambda pull: pull.seek_to_time(QUEUE, time.time() + 60.0),
        lambda pull: asyncio.run(pull.aseek_to_time(QUEUE, time.time() + 60.0)),
    ],
    ids=["latest", "time", "time in asyncio"],
)
def test_position_in_deleted_topic_is_out_of_range(
    services: Services, mq: Connection, admin: Admin, seek: Callable[[PullConsumer], Any]
) -> None:
    """Cover a regression: the position was used in the new topic and skipped five messages."""
    del admin
    send(mq, "old", 5)
    with PullConsumer(mq, "g") as pull:
        seek(pull)
        recreate_topic(services)
        with pytest.raises(OffsetOutOfRange):
            pull.poll(QUEUE, 10)
        pull.seek(QUEUE, "earliest")
        assert len(pull.poll(QUEUE, 10)) == 8


def test_new_consumer_of_recreated_topic_reads_all_messages(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    send(mq, "old", 5)
    with PullConsumer(mq, "g") as pull:
        pull.poll(QUEUE, 10)
        pull.commit(QUEUE, 5)
    recreate_topic(services)
    with PullConsumer(mq, "g") as pull:
        assert len(pull.poll(QUEUE, 10)) == 8
        assert pull.poll(QUEUE, 10, timeout=0.1) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda pull: [message.body for message in pull.poll(QUEUE, 2)],
        lambda pull: pull.fetch_table(QUEUE, 2)["body"].to_pylist(),
        lambda pull: [message.body for message in asyncio.run(pull.apoll(QUEUE, 2))],
    ],
    ids=["poll", "fetch_table", "apoll"],
)
@pytest.mark.parametrize(
    "seek",
    [lambda pull: pull.seek(QUEUE, 2), lambda pull: asyncio.run(pull.aseek(QUEUE, 2))],
    ids=["seek", "aseek"],
)
def test_seek_discards_messages_fetched_from_deleted_topic(
    services: Services,
    mq: Connection,
    admin: Admin,
    read: Callable[[PullConsumer], list[bytes]],
    seek: Callable[[PullConsumer], None],
) -> None:
    """Cover a regression: prefetched old messages were returned in place of new ones."""
    del admin
    send(mq, "old", 5)
    with PullConsumer(mq, "g") as pull:
        pull.seek(QUEUE, 0)
        assert read(pull) == [b"old0", b"old1"]
        recreate_topic(services)
        seek(pull)
        assert read(pull) == [b"new2", b"new3"]
