"""A pull consumer's thread asks its broker by itself: fetches as much as an answer holds, commits without the loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from raymq.actors import route_cache
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.client import Admin, BrokerUnavailable, Connection, InvalidInput, Producer, PullConsumer, TopicNotFound
from raymq.client.pull import pull_consumer
from raymq.client.pull import pull_consumer_engine as pulling
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def consumer(mq: Connection) -> Iterator[PullConsumer]:
    with Producer(mq, "p") as producer:
        producer.send_table("t", pa.table({"b": [b"%d" % n for n in range(5_000)]}), body="b", queue=QUEUE)
    with PullConsumer(mq, "g") as made:
        yield made


def test_a_commit_is_made_by_the_calling_thread(
    consumer: PullConsumer, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 14.19b: it went through the event loop, at eight times the price of a send."""
    asked: list[int] = []
    request = mq.pool.request

    async def counting(address: str, command: Command, *given: float, **named: bool) -> Command:
        asked.append(command.code)
        return await request(address, command, *given, **named)  # type: ignore[arg-type]

    consumer.poll(QUEUE)
    monkeypatch.setattr(mq.pool, "request", counting)
    for offset in range(1, 50):
        consumer.commit(QUEUE, offset)
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in asked
    assert consumer.committed(QUEUE) == 49
    with pytest.raises(InvalidInput):
        consumer.commit(QUEUE, -1)


def test_a_socket_that_hangs_as_it_is_opened_keeps_nobody_beyond_his_time(
    consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 10 s, whatever the time-out, where a network swallows what opens a connection."""
    assert consumer.position(QUEUE) == 0  # over the loop's connection, which stays
    asked: list[float] = []

    def hang(_: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", hang)
    for timeout in (0.0, 0.5, 2.0, 60.0):
        assert consumer.poll(QUEUE, timeout=timeout)
    assert asked == pytest.approx([0.5, 0.5, 1.0, 10.0], abs=0.1)


def test_a_commit_finds_a_broker_that_was_restarted(consumer: PullConsumer, services: Services) -> None:
    consumer.commit(QUEUE, 3)
    services.crash_broker("broker-a")
    services.start_broker("broker-a")
    consumer.commit(QUEUE, 7)
    assert consumer.committed(QUEUE) == 7


def test_a_table_holds_what_an_answer_does_unless_told_otherwise(consumer: PullConsumer) -> None:
    assert consumer.fetch_table(QUEUE).num_rows == 5_000
    consumer.seek(QUEUE, 0)
    assert consumer.fetch_table(QUEUE, 10).num_rows == 10


def test_no_answer_names_the_broker_and_its_address(
    consumer: PullConsumer, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 14.19: it named the address alone, which says nothing to who looks at names."""
    broker = services.brokers["broker-a"]
    monkeypatch.setattr(pull_consumer, "CONTROL_SECONDS", 0.2)
    monkeypatch.setattr(pulling, "CONTROL_SECONDS", 0.2)
    named = rf"^broker-a \({broker.address}\): no answer within 0\.\d+ s"
    let_go = threading.Event()
    held = services.loop.submit(_held(let_go))
    try:
        with pytest.raises(BrokerUnavailable, match=named) as by_thread:
            consumer.commit(QUEUE, 1)
        with pytest.raises(BrokerUnavailable, match=named) as by_loop:
            consumer.offsets(QUEUE)
    finally:
        let_go.set()
        held.result(10)
    assert (by_thread.value.broker, by_loop.value.broker) == ("broker-a", "broker-a")


async def _held(let_go: threading.Event) -> None:
    """Hold up the services' loop, as a process does that was stopped."""
    let_go.wait(30)


def test_a_broker_that_refuses_is_named(consumer: PullConsumer, services: Services) -> None:
    """By its name: at its address where the routes still lead there, else as one that they have no more."""
    consumer.offsets(QUEUE)
    address = services.brokers["broker-a"].address
    services.crash_broker("broker-a")
    with pytest.raises(BrokerUnavailable) as caught:
        consumer.offsets(QUEUE)
    assert str(caught.value).startswith((f"broker-a ({address}): ", "broker-a: it is not in the route of topic t"))


def test_a_deleted_topics_route_is_not_used_for_ever(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 14.21: who asked for a fresh one got the old one as long as its process lived."""
    mq.run(mq.routes.get("t"))
    with Connection([services.name_server.address]) as other:
        Admin(other).delete_topic("t")
        poll_until(lambda: _is_unknown(other, "t"))
    assert mq.run(mq.routes.get("t", fresh=True)).readable(), "a name server that has just started may not know it yet"
    now = route_cache.boottime
    monkeypatch.setattr(route_cache, "boottime", lambda: now() + route_cache.ROUTE_SECONDS)
    with pytest.raises(TopicNotFound):
        mq.run(mq.routes.get("t", fresh=True))


def _is_unknown(mq: Connection, topic: str) -> bool:
    mq.routes.forget(topic)
    try:
        mq.run(mq.routes.get(topic))
    except TopicNotFound:
        return True
    return False


def test_a_pull_consumer_that_nobody_refers_to_leaves_no_socket(mq: Connection, services: Services) -> None:
    """A thread that waits for what it fetches has a socket of its own, which lasted as long as the connection."""
    connections = services.brokers[QUEUE.broker]._server.connections

    def read() -> None:
        made = PullConsumer(mq, "g")
        made.seek(QUEUE, 0)
        for _ in range(2):  # the first one may have to find the way
            made.poll(QUEUE, timeout=0.3)
        assert made._direct._channels

    read()
    poll_until(lambda: not mq.channels._open)
    before = len(connections)  # the server may not know yet of one that has just closed
    for _ in range(5):
        read()
    poll_until(lambda: len(connections) <= before)
