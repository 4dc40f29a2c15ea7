"""A pull consumer fetches ahead what a poll left, and gives it only to the poll that it fits.

A thread's poll has a socket of its own for that, one of asyncio code the loop's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.client.requests.prefetch_table import MAX_PREFETCHED_QUEUES
from tests.integration.conftest import Services
from tests.integration.pulling import before_messages
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def fetches(services: Services) -> Counter[str]:
    """How many fetches each queue had."""
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
    with before_messages(mq, QUEUE, 30) as pull:
        yield pull


Offsets = Callable[..., list[int]]


def by_thread(consumer: PullConsumer, most: int = 10, queue: MessageQueue = QUEUE) -> list[int]:
    return [message.queue_offset for message in consumer.poll(queue, most, timeout=0.1)]


def by_asyncio(consumer: PullConsumer, most: int = 10, queue: MessageQueue = QUEUE) -> list[int]:
    return [message.queue_offset for message in asyncio.run(consumer.apoll(queue, most, timeout=0.1))]


@pytest.fixture(params=[by_thread, by_asyncio])
def offsets(request: pytest.FixtureRequest) -> Offsets:
    poll: Offsets = request.param
    return poll


def test_the_next_fetch_is_under_way_before_the_next_poll(
    consumer: PullConsumer, fetches: Counter[str], offsets: Offsets
) -> None:
    assert offsets(consumer) == list(range(10))
    poll_until(lambda: fetches["t"] == 2, 5)
    assert offsets(consumer) == list(range(10, 20))
    assert offsets(consumer) == list(range(20, 30))
    assert fetches["t"] == 3  # nothing is fetched ahead of the queue's end
    assert offsets(consumer) == []


def test_it_is_given_only_to_the_poll_that_it_fits(consumer: PullConsumer, offsets: Offsets) -> None:
    assert offsets(consumer) == list(range(10))
    assert offsets(consumer, 3) == [10, 11, 12]
    consumer.seek(QUEUE, 5)
    assert offsets(consumer, 3) == [5, 6, 7]
    assert consumer.fetch_table(QUEUE, 3)["offset"].to_pylist() == [8, 9, 10]


def test_messages_that_come_meanwhile_are_not_missed(consumer: PullConsumer, mq: Connection, offsets: Offsets) -> None:
    assert offsets(consumer, 25) == list(range(25))
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"later"), queue=QUEUE)
    assert offsets(consumer, 25) + offsets(consumer, 25) == list(range(25, 31))


def test_queues_and_ways_may_alternate(consumer: PullConsumer, mq: Connection) -> None:
    """What came for one queue before another one's answer waits for its poll; what the other way began is given up."""
    other = MessageQueue("t", "broker-a", 1)
    with Producer(mq, "p") as producer:
        for number in range(30):
            producer.send(Message("t", b"%d" % number), queue=other)
    consumer.seek(other, 0)
    for first in range(0, 20, 10):
        for queue in (QUEUE, other):
            assert by_thread(consumer, 10, queue) == list(range(first, first + 10))
    assert list(consumer._direct._ahead) == [QUEUE, other]
    assert by_asyncio(consumer, 5) == list(range(20, 25))
    assert consumer._pull_engine._ahead.holds(QUEUE)
    assert by_thread(consumer, 5) == list(range(25, 30))
    poll_until(lambda: not consumer._pull_engine._ahead.holds(QUEUE), 5)
    assert by_thread(consumer, 10, other) == list(range(20, 30))


def test_a_socket_that_broke_with_an_answer_in_it_costs_nothing(consumer: PullConsumer, services: Services) -> None:
    assert by_thread(consumer) == list(range(10))
    server = services.brokers["broker-a"]._server
    loop = server.loop
    connections = list(server.connections)
    loop.call_soon_threadsafe(lambda: [connection.close() for connection in connections])
    poll_until(lambda: not server.connections & set(connections), 5)
    assert by_thread(consumer) == list(range(10, 20))
    assert by_thread(consumer) == list(range(20, 30))


def test_few_queues_are_held_and_none_when_it_is_closed(
    consumer: PullConsumer, mq: Connection, admin: Admin, offsets: Offsets
) -> None:
    queues = [MessageQueue(f"t{number}", "broker-a", 0) for number in range(MAX_PREFETCHED_QUEUES + 2)]
    begun = consumer._direct._ahead if offsets is by_thread else consumer._pull_engine._ahead._ahead
    for queue in queues:
        admin.create_topic(queue.topic, queues=1)
        with Producer(mq, "p") as producer:
            for _ in range(2):
                producer.send(Message(queue.topic, b"x"), queue=queue)
        consumer.seek(queue, 0)
        assert offsets(consumer, 1, queue) == [0]
    assert list(begun) == queues[-MAX_PREFETCHED_QUEUES:]
    consumer.close()
    assert not begun
