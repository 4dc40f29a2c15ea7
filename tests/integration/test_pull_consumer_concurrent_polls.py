"""Test concurrent polls of one pull consumer, which must not end each other's wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from tests.forked_child import run_in_child
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration
QUEUES = [MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)]
#: Longer than the test waits for anything.
LONG_SECONDS = 60.0


@pytest.fixture
def consumer(mq: Connection, admin: Admin) -> Iterator[PullConsumer]:
    del admin
    with PullConsumer(mq, "g") as pull:
        for queue in QUEUES:
            pull.seek(queue, 0)
        yield pull


def waiting_polls(services: Services) -> int:
    return len(services.brokers["broker-a"].polls)


def send(mq: Connection, queue: MessageQueue) -> None:
    with Producer(mq, "p") as producer:
        producer.send(Message(queue.topic, b"x"), queue=queue)


def test_polls_of_two_queues_wait_concurrently(consumer: PullConsumer, mq: Connection, services: Services) -> None:
    """Cover a regression: a broker let the second poll replace the first.

    Both returned empty at once, some thousand times a second for a program that polls again.
    """

    async def main() -> list[int]:
        polls = [asyncio.ensure_future(consumer.apoll(queue, 10, LONG_SECONDS)) for queue in QUEUES]
        await asyncio.to_thread(poll_until, lambda: waiting_polls(services) == len(QUEUES))
        for queue in QUEUES:
            await asyncio.to_thread(send, mq, queue)
        return [len(messages) for messages in await asyncio.wait_for(asyncio.gather(*polls), 20)]

    assert asyncio.run(main()) == [1, 1]


def test_poll_in_forked_child_does_not_end_parent_poll(
    consumer: PullConsumer, mq: Connection, services: Services
) -> None:
    queue, found = QUEUES[0], []
    consumer.position(queue)
    poll = threading.Thread(target=lambda: found.extend(consumer.poll(queue, 10, LONG_SECONDS)), daemon=True)
    poll.start()
    poll_until(lambda: waiting_polls(services) == 1)
    assert run_in_child(lambda: str(consumer.poll(queue, 10, 0.2))) == "[]"
    send(mq, queue)
    poll.join(20)
    assert [message.body for message in found] == [b"x"]
