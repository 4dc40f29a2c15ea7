"""Test that a client's memory of servers, topics and queues stays bounded."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from raymq.actors import route_cache
from raymq.actors.errors import BrokerUnavailable, QueueNotFound
from raymq.actors.protocol import MessageQueue, QueueData, TopicRoute
from raymq.actors.route_cache import RouteCache
from raymq.actors.sending import partition_sequence
from raymq.actors.sending.partition_sequence import PartitionSequences
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import MAX_DEPARTED_QUEUES, make_sender
from raymq.actors.wire.blocking_channel import BlockingChannelPool
from raymq.actors.wire.connection_pool import MAX_PEERS, ConnectionPool
from raymq.actors.wire.frame import Command
from tests.polling import poll_until
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def port() -> Iterator[int]:
    """Listen at every address of this machine, and close each connection."""
    with socket.create_server(("0.0.0.0", 0), backlog=512) as listener:

        def accept() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def addresses(count: int, port: int) -> list[str]:
    """Return `count` addresses of this machine."""
    return [f"127.0.{number // 250}.{number % 250 + 1}:{port}" for number in range(count)]


def test_pool_forgets_addresses_without_connection(port: int) -> None:
    """Cover fault 13.30."""

    async def meet() -> None:
        pool = ConnectionPool()
        for address in addresses(MAX_PEERS + 50, port):
            connection = await pool.get(address)
            while connection.is_open:  # noqa: ASYNC110 - connections have no event
                await asyncio.sleep(0)
        assert len(pool._peers) <= 51
        await pool.close()

    asyncio.run(meet())


def test_channels_to_closed_servers_are_dropped(port: int) -> None:
    """Cover fault 13.30."""
    pool = BlockingChannelPool()
    met = addresses(40, port)
    for address in met:
        channel = pool._take(address, 5.0)
        assert channel is not None
        pool._give_back(channel)
        poll_until(lambda channel=channel: not channel.is_reusable, 10)  # type: ignore[misc]
    assert list(pool._idle) == met[-1:]
    assert (len(pool._open), {at: len(each) for at, each in pool._shared.items()}) == (1, {met[-1]: 1})
    assert pool._take("127.0.0.1:1", 1.0) is None
    assert "127.0.0.1:1" not in pool._idle
    pool.close()


def route(*brokers: str) -> TopicRoute:
    queues = tuple(QueueData(broker, 1, 1) for broker in brokers)
    return TopicRoute("t", queues, {broker: f"{broker}:1" for broker in brokers})


def test_brokers_that_left_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover fault 13.30."""
    clock = FakeClock()
    monkeypatch.setattr(route_cache, "boottime", clock)
    routes = RouteCache(ConnectionPool(), ["n:1"])
    for number in range(1_000):
        routes._misses(route(f"broker-{number}"), clock())
        clock.advance(route_cache.RECENTLY_LEFT_SECONDS / 4)
    assert len(routes._seen_at["t"]) <= 5


def test_departed_queues_are_bounded_and_raise_unavailable() -> None:
    """Cover fault 13.30."""
    pool = ConnectionPool()
    sender = make_sender(pool, RouteCache(pool, ["n:1"]), None)
    for number in range(MAX_DEPARTED_QUEUES + 500):
        sender._queues(route(f"broker-{number:05}", "here"))
    assert len(sender._seen["t"]) <= MAX_DEPARTED_QUEUES + 2
    left, never = MessageQueue("t", f"broker-{MAX_DEPARTED_QUEUES + 400:05}", 0), MessageQueue("t", "nowhere", 0)
    for queue, error in ((left, BrokerUnavailable), (never, QueueNotFound)):
        with pytest.raises(error):
            sender.choose(route("here"), SendParameters(1.0, 0, queue), None)


def test_unused_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against 5 KB for each topic that a producer has ever sent to."""
    clock = FakeClock()
    monkeypatch.setattr(route_cache, "boottime", clock)

    async def ask(*_: object, **__: object) -> Command:
        return Command(0)

    def read_route(topic: str, _: object) -> TopicRoute:
        return replace(route("b"), topic=topic)

    monkeypatch.setattr(RouteCache, "ask", ask)
    monkeypatch.setattr(route_cache.route_answers, "read_route", read_route)

    async def send_to_many() -> None:
        pool = ConnectionPool()
        routes = RouteCache(pool, ["n:1"])
        sender = make_sender(pool, routes, None)
        for number in range(3 * route_cache.MAX_TOPICS):
            for topic in ("always", f"job-{number}"):
                sender.choose(await routes.get(topic), SendParameters(1.0, 0), None)
            clock.advance(10)
            known = (routes._cached, routes._seen_at, routes._writable, sender._listed, sender._seen)
            assert all("always" in table for table in known)
            assert max(map(len, (*known, sender._picker._next))) <= 2 * route_cache.MAX_TOPICS
        assert routes.knows(f"job-{3 * route_cache.MAX_TOPICS - 1}")
        assert not routes.knows("job-1")

    asyncio.run(send_to_many())


def test_forgotten_queue_of_idempotent_producer_gets_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the queues that a producer remembers."""
    monkeypatch.setattr(partition_sequence, "MAX_SEQUENCES", 10)
    sequences = PartitionSequences()
    queues = [MessageQueue("t", "b", number) for number in range(25)]
    under_way = sequences.hold(queues[0])
    assert under_way.take()
    given = {(queues[0], under_way.count.epoch)}
    for queue in (*queues[1:], *queues[1:]):
        lane = sequences.hold(queue)
        assert lane.take()
        assert (queue, lane.count.epoch) not in given
        given.add((queue, lane.count.epoch))
        lane.stored(1)
        assert len(sequences) <= 10
    assert not sequences.hold(queues[0]).take(), "its batch is under way"
    under_way.stored(1)
