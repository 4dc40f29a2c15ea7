"""Test pull consumers whose threads send requests to the broker directly, without the event loop."""

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


def test_commit_uses_calling_thread(consumer: PullConsumer, mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 14.19b: a commit used the event loop and cost eight times as much as a send."""
    recorded: list[int] = []
    request = mq.pool.request

    async def counting(address: str, command: Command, *given: float, **named: bool) -> Command:
        recorded.append(command.code)
        return await request(address, command, *given, **named)  # type: ignore[arg-type]

    consumer.poll(QUEUE)
    monkeypatch.setattr(mq.pool, "request", counting)
    for offset in range(1, 50):
        consumer.commit(QUEUE, offset)
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in recorded
    assert consumer.committed(QUEUE) == 49
    with pytest.raises(InvalidInput):
        consumer.commit(QUEUE, -1)


def test_hanging_connect_respects_poll_timeout(consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a network that drops connection attempts a poll took 10 s, whatever its timeout."""
    assert consumer.position(QUEUE) == 0  # uses the loop's connection, which stays open
    recorded: list[float] = []

    def hang(_: tuple[str, int], timeout: float) -> socket.socket:
        recorded.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", hang)
    for timeout in (0.0, 0.5, 2.0, 60.0):
        assert consumer.poll(QUEUE, timeout=timeout)
    assert recorded == pytest.approx([0.5, 0.5, 1.0, 10.0], abs=0.1)


def test_commit_finds_restarted_broker(consumer: PullConsumer, services: Services) -> None:
    consumer.commit(QUEUE, 3)
    services.crash_broker("broker-a")
    services.start_broker("broker-a")
    consumer.commit(QUEUE, 7)
    assert consumer.committed(QUEUE) == 7


def test_fetch_table_returns_whole_answer_by_default(consumer: PullConsumer) -> None:
    assert consumer.fetch_table(QUEUE).num_rows == 5_000
    consumer.seek(QUEUE, 0)
    assert consumer.fetch_table(QUEUE, 10).num_rows == 10


def test_timeout_error_names_broker_and_address(
    consumer: PullConsumer, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 14.19: the error named the address only."""
    broker = services.brokers["broker-a"]
    monkeypatch.setattr(pull_consumer, "CONTROL_SECONDS", 0.2)
    monkeypatch.setattr(pulling, "CONTROL_SECONDS", 0.2)
    named = rf"^broker-a \({broker.address}\): no answer within 0\.\d+ s"
    let_go = threading.Event()
    held = services.loop.submit(_block_loop(let_go))
    try:
        with pytest.raises(BrokerUnavailable, match=named) as by_thread:
            consumer.commit(QUEUE, 1)
        with pytest.raises(BrokerUnavailable, match=named) as by_loop:
            consumer.offsets(QUEUE)
    finally:
        let_go.set()
        held.result(10)
    assert (by_thread.value.broker, by_loop.value.broker) == ("broker-a", "broker-a")


async def _block_loop(let_go: threading.Event) -> None:
    """Block the services' loop, as in a stopped process."""
    let_go.wait(30)


def test_connection_error_names_broker(consumer: PullConsumer, services: Services) -> None:
    """The error has the address if the routes still contain the broker, and otherwise says that they do not."""
    consumer.offsets(QUEUE)
    address = services.brokers["broker-a"].address
    services.crash_broker("broker-a")
    with pytest.raises(BrokerUnavailable) as caught:
        consumer.offsets(QUEUE)
    assert str(caught.value).startswith((f"broker-a ({address}): ", "broker-a: it is not in the route of topic t"))


def test_route_of_deleted_topic_expires(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 14.21: a request for a fresh route returned the old one as long as the process lived."""
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


def test_unreferenced_pull_consumer_leaves_no_socket(mq: Connection, services: Services) -> None:
    """A waiting thread uses a separate socket, which stayed open as long as the connection."""
    connections = services.brokers[QUEUE.broker]._server.connections

    def read() -> None:
        made = PullConsumer(mq, "g")
        made.seek(QUEUE, 0)
        for _ in range(2):  # the first poll may have to look up the route
            made.poll(QUEUE, timeout=0.3)
        assert made._fetcher._channels

    read()
    poll_until(lambda: not mq.channels._open)
    before = len(connections)  # the server may not have noticed the last close yet
    for _ in range(5):
        read()
    poll_until(lambda: len(connections) <= before)
