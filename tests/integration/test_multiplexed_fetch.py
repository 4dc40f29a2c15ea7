"""Test that a consumer uses one fetch per broker, by counting threads and requests."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.client import Admin, Connection, Message, Producer, PushConsumer
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUES, LISTENERS = 8, 4


def count_requests(services: Services) -> dict[str, Counter[int]]:
    """Count requests by broker and code from now on."""
    counted: dict[str, Counter[int]] = {}
    for name, broker in services.brokers.items():
        counts = counted[name] = Counter()

        def counting(code: int, handler, counts=counts):  # type: ignore[no-untyped-def]
            def handle(connection, request):  # type: ignore[no-untyped-def]
                counts[code] += 1
                return handler(connection, request)

            return handle

        broker._server.handlers = {code: counting(code, one) for code, one in broker._server.handlers.items()}
    return counted


@pytest.mark.parametrize("topics", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_many_queues_need_no_more_threads_and_fetches_than_one(
    mq: Connection, services: Services, admin: Admin, topics: int
) -> None:
    others = set(threading.enumerate())

    def consume(names: list[str], group: str) -> tuple[int, Counter[str]]:
        taker = RecordingListener()
        counted = count_requests(services)
        with (
            PushConsumer(mq, group, dict.fromkeys(names, "*"), taker, threads=LISTENERS),
            Producer(mq, "p") as producer,
        ):
            poll_until(
                lambda: all(len(broker.polls) == 1 for broker in services.brokers.values()), 60, "parked fetches"
            )
            at_start = {name: counts[RequestCode.FETCH] for name, counts in counted.items()}
            for number in range(20):
                producer.send(Message(names[number % len(names)], b"%d" % number))
                poll_until(lambda n=number: len(taker.taken) == n + 1, 10)  # type: ignore[misc]
            own = set(threading.enumerate()) - others
            threads = Counter(thread.name.rpartition("_")[0] or thread.name for thread in own)
            listeners = threads.pop(f"raymq-{group}")
            assert listeners <= LISTENERS
            fetches = Counter({name: counts[RequestCode.FETCH] - at_start[name] for name, counts in counted.items()})
        return threads["raymq-client"], fetches

    names = [f"topic-{number}" for number in range(topics)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: admin.create_topic(name, queues=QUEUES), names))
    few_threads, few_fetches = consume(["t"], "few")
    many_threads, many_fetches = consume(names, "many")
    print(f"1 topic: {few_threads} threads, {few_fetches}; {topics} topics: {many_threads} threads, {many_fetches}")
    assert many_threads == few_threads <= 1  # the connection's thread, which may exist already
    # each message ends one fetch and starts the next; other causes do not grow with the number of queues
    assert many_fetches.total() <= 2 * 20 + 4
    assert few_fetches.total() <= 2 * 20 + 4
