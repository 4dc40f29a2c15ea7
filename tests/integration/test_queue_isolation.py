"""Test that a deleted topic, a damaged message or a recreated queue blocks no other queue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raymq.client import (
    Admin,
    Connection,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    SendResult,
    SimpleConsumer,
    TopicNotFound,
)
from raymq.storage.records import message_id
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def numbered_bodies(first: int, count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(first, first + count))


def test_deleted_topic_does_not_block_other_topics(mq: Connection, services: Services, admin: Admin) -> None:
    admin.create_topic("a", queues=4)
    taker = RecordingListener()
    producer = Producer(mq, "p")
    with PushConsumer(mq, "g", {"a": "*", "t": "*"}, taker) as consumer:
        producer.send(Message("a", b"before"))
        poll_until(lambda: taker.taken)
        with Connection([services.name_server.address]) as other:
            Admin(other).delete_topic("a")
        for number in range(200):
            producer.send(Message("t", b"%d" % number))
        poll_until(lambda: set(numbered_bodies(0, 200)) <= set(taker.bodies), 10)
        assert consumer.health.failures == []
        admin.create_topic("a", queues=4)
        with Connection([services.name_server.address]) as other:
            fresh = Producer(other, "p2")
            for number in range(200, 240):
                fresh.send(Message("a", b"%d" % number))
        poll_until(lambda: set(numbered_bodies(0, 240)) <= set(taker.bodies), 30)


def test_simple_consumer_continues_with_remaining_topics(mq: Connection, services: Services, admin: Admin) -> None:
    """Cover a regression: every receive raised TopicNotFound and left the other topic unread."""
    admin.create_topic("a", queues=4)
    producer = Producer(mq, "p")
    taken: list[bytes] = []

    def take(count: int) -> None:
        def more() -> bool:
            received = consumer.receive(32, 60.0, 0.5)
            taken.extend(message.body for message in received)
            assert consumer.ack(received)
            return len(taken) >= count

        poll_until(more, 30)

    with SimpleConsumer(mq, "g", {"a": "*", "t": "*"}, missing_topics="error") as consumer:
        producer.send(Message("a", b"0"))
        take(1)
        with Connection([services.name_server.address]) as other:
            Admin(other).delete_topic("a")
        for number in range(1, 40):
            producer.send(Message("t", b"%d" % number))
        take(40)
        assert consumer.receive(32, 60.0, 0.2) == []
        Admin(mq).delete_topic("t")

        def is_refused() -> bool:
            try:
                consumer.receive(32, 60.0, 0.2)
            except TopicNotFound:
                return True
            return False

        poll_until(is_refused, 30)
        admin.create_topic("a", queues=4)
        mq.routes.invalidate("a")
        producer.send(Message("a", b"40"))
        take(41)
    assert sorted(taken) == numbered_bodies(0, 41)


def damage_message(services: Services, sent: SendResult) -> None:
    """Flip a bit of the last byte of a message's body in its broker's log."""
    physical = message_id.decode(sent.message_id)[2]
    broker = services.brokers[sent.queue.broker]
    record = broker.store.read_at(physical)
    at = physical + broker.store.raw_at(physical).index(record.body) + len(record.body) - 1
    log = Path(services.directory / sent.queue.broker / "commitlog")
    name = next(each for each in sorted(log.iterdir(), reverse=True) if int(each.name) <= at)
    with name.open("r+b", buffering=0) as file:
        where = at - int(name.name)
        byte = os.pread(file.fileno(), 1, where)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), where)


@pytest.mark.parametrize("expression", ["*", "even"])
@pytest.mark.parametrize("count", [3, 60])
def test_damaged_message_alone_is_skipped(
    mq: Connection, services: Services, admin: Admin, expression: str, count: int
) -> None:
    """Send `count` messages per queue: few are decoded singly, many together."""
    admin.create_topic("four", queues=4)
    queues = [MessageQueue("four", "broker-a", queue_id) for queue_id in range(4)]
    producer = Producer(mq, "p")
    sent: dict[bytes, SendResult] = {}
    number = 0
    for queue in queues:
        for _ in range(count):
            body = b"message %d" % number
            sent[body] = producer.send(Message("four", body, tags="odd" if number % 2 else "even"), queue=queue)
            number += 1
    hit = [b"message 2", b"message %d" % (count + 1 + (count + 1) % 2)]
    for body in hit:
        damage_message(services, sent[body])
    wanted = {body for body in sent if expression == "*" or int(body.split()[1]) % 2 == 0}
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"four": expression}, taker) as consumer:
        poll_until(lambda: set(taker.bodies) == wanted - set(hit), 20, "all but the damaged ones")
        poll_until(lambda: consumer.health.set_aside == len(hit), 10)
        places = {(aside.queue, aside.offset) for aside in consumer.health.last_set_aside}
        assert places == {(sent[body].queue, sent[body].queue_offset) for body in hit}
        later = [producer.send(Message("four", b"later", tags="even"), queue=queue) for queue in queues]
        poll_until(lambda: taker.bodies.count(b"later") == len(later), 10)
        poll_until(
            lambda: sum(found.lag or 0 for found in admin.group_progress("g").values()) == 0, 10, "all is committed"
        )


@pytest.mark.parametrize("model", list(MessageModel))
@pytest.mark.parametrize("after", [20, 150])
def test_recreated_topic_is_consumed_from_start(
    mq: Connection, services: Services, admin: Admin, model: MessageModel, after: int
) -> None:
    """Include a new topic that is already longer than the old one was."""
    admin.create_topic("again", queues=1)
    queue = MessageQueue("again", "broker-a", 0)
    producer, taker = Producer(mq, "p"), RecordingListener()
    with PushConsumer(mq, "g", {"again": "*"}, taker, model=model):
        producer.send_batch([Message("again", b"old %d" % number) for number in range(100)], queue=queue)
        poll_until(lambda: len(taker.taken) == 100, 10)
        if model is MessageModel.CLUSTERING:
            poll_until(lambda: admin.group_progress("g")[queue].committed_offset == 100, 10)
        core = services.brokers["broker-a"].core

        async def recreate_topic() -> None:  # so quickly that no fetch and no commit comes in between
            core.topics.delete("again")
            core.topics.create("again", 1)

        services.loop.run(recreate_topic())
        new = [b"new %d" % number for number in range(after)]
        producer.send_batch([Message("again", body) for body in new], queue=queue)
        poll_until(lambda: set(new) <= set(taker.bodies), 30, "all new messages")
        if model is MessageModel.CLUSTERING:
            poll_until(lambda: admin.group_progress("g")[queue].committed_offset == after, 10)
