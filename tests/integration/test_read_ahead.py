"""Test the read-ahead of pull consumers, which serves only a matching poll.

A poll of a thread uses the thread's own socket, a poll of asyncio code the socket of the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.client.pull.pull_fetcher import MAX_PREFETCHED_QUEUES
from tests.integration.conftest import Services
from tests.integration.pulling import consumer_before_messages
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def fetches(services: Services) -> Counter[str]:
    """Count the fetches of each topic."""
    counted: Counter[str] = Counter()
    server = services.brokers["broker-a"]._server
    fetch = server.handlers[RequestCode.FETCH]

    def counting(connection, request):  # type: ignore[no-untyped-def]
        counted.update(topic for topic, *_ in request.fields["queues"])
        return fetch(connection, request)

    server.handlers = {**server.handlers, RequestCode.FETCH: counting}
    return counted


@pytest.fixture
def consumer(mq: Connection) -> Iterator[PullConsumer]:
    with consumer_before_messages(mq, QUEUE, 30) as pull:
        yield pull


Offsets = Callable[..., list[int]]


def poll_in_thread(consumer: PullConsumer, most: int = 10, queue: MessageQueue = QUEUE) -> list[int]:
    return [message.queue_offset for message in consumer.poll(queue, most, timeout=0.1)]


def poll_in_asyncio(consumer: PullConsumer, most: int = 10, queue: MessageQueue = QUEUE) -> list[int]:
    return [message.queue_offset for message in asyncio.run(consumer.apoll(queue, most, timeout=0.1))]


@pytest.fixture(params=[poll_in_thread, poll_in_asyncio])
def offsets(request: pytest.FixtureRequest) -> Offsets:
    poll: Offsets = request.param
    return poll


def test_next_fetch_starts_before_next_poll(consumer: PullConsumer, fetches: Counter[str], offsets: Offsets) -> None:
    assert offsets(consumer) == list(range(10))
    poll_until(lambda: fetches["t"] == 2, 5)
    assert offsets(consumer) == list(range(10, 20))
    assert offsets(consumer) == list(range(20, 30))
    assert fetches["t"] == 3  # no fetch runs past the queue's end
    assert offsets(consumer) == []


def test_read_ahead_serves_only_matching_poll(consumer: PullConsumer, offsets: Offsets) -> None:
    assert offsets(consumer) == list(range(10))
    assert offsets(consumer, 3) == [10, 11, 12]
    consumer.seek(QUEUE, 5)
    assert offsets(consumer, 3) == [5, 6, 7]
    assert consumer.fetch_table(QUEUE, 3)["offset"].to_pylist() == [8, 9, 10]


def test_read_ahead_misses_no_new_messages(consumer: PullConsumer, mq: Connection, offsets: Offsets) -> None:
    assert offsets(consumer, 25) == list(range(25))
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"later"), queue=QUEUE)
    assert offsets(consumer, 25) + offsets(consumer, 25) == list(range(25, 31))


def test_queues_and_poll_methods_can_alternate(consumer: PullConsumer, mq: Connection) -> None:
    """Keep a queue's answer for its next poll; drop read-ahead of the other method."""
    other = MessageQueue("t", "broker-a", 1)
    with Producer(mq, "p") as producer:
        for number in range(30):
            producer.send(Message("t", b"%d" % number), queue=other)
    consumer.seek(other, 0)
    for first in range(0, 20, 10):
        for queue in (QUEUE, other):
            assert poll_in_thread(consumer, 10, queue) == list(range(first, first + 10))
    assert list(consumer._fetcher.ahead) == [QUEUE, other]
    assert poll_in_asyncio(consumer, 5) == list(range(20, 25))
    assert list(consumer._fetcher.ahead) == [other, QUEUE]
    assert poll_in_thread(consumer, 5) == list(range(25, 30))
    assert list(consumer._fetcher.ahead) == [other]
    assert poll_in_thread(consumer, 10, other) == list(range(20, 30))


def test_broken_socket_with_pending_answer_loses_no_message(consumer: PullConsumer, services: Services) -> None:
    assert poll_in_thread(consumer) == list(range(10))
    server = services.brokers["broker-a"]._server
    loop = server.loop
    connections = list(server.connections)
    loop.call_soon_threadsafe(lambda: [connection.close() for connection in connections])
    poll_until(lambda: not server.connections & set(connections), 5)
    assert poll_in_thread(consumer) == list(range(10, 20))
    assert poll_in_thread(consumer) == list(range(20, 30))


def test_read_ahead_is_limited_and_cleared_on_close(
    consumer: PullConsumer, mq: Connection, admin: Admin, offsets: Offsets
) -> None:
    queues = [MessageQueue(f"t{number}", "broker-a", 0) for number in range(MAX_PREFETCHED_QUEUES + 2)]
    for queue in queues:
        admin.create_topic(queue.topic, queues=1)
        with Producer(mq, "p") as producer:
            for _ in range(2):
                producer.send(Message(queue.topic, b"x"), queue=queue)
        consumer.seek(queue, 0)
        assert offsets(consumer, 1, queue) == [0]
    assert list(consumer._fetcher.ahead) == queues[-MAX_PREFETCHED_QUEUES:]
    consumer.close()
    assert not list(consumer._fetcher.ahead)
