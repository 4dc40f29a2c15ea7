"""Who connects to a server with TLS and makes no handshake takes little of it, not for long, nothing from others."""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio.sslproto import SSLProtocol
from contextlib import AsyncExitStack

import pytest

from raymq.actors.broker.replica.broker_sockets import BrokerSockets
from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.protocol import Tls
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import client_context, server_context
from tests.certificates import certificates
from tests.polling import poll_until
from tests.unit.actors.test_pool import ECHO, echo
from tests.wire_server import Peer, serving


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, Tls]:
    return certificates(tmp_path_factory.mktemp("tls"))


async def ask(address: str, client: Tls) -> int:
    """The code of an answer over a new connection."""
    pool = ConnectionPool(tls=client_context(client))
    try:
        return (await pool.request(address, Command(ECHO), 10)).code
    finally:
        await pool.close()


async def test_silent_connections_are_counted_and_the_oldest_give_way(tls: tuple[Tls, Tls]) -> None:
    """They took descriptors and memory beyond all limits, for a minute each."""
    server, client = tls
    limits = ServerLimits(handshakes=8)
    async with serving({ECHO: echo}, tls=server_context(server), limits=limits) as (made, address):
        silent = [await Peer.connect(address) for _ in range(40)]
        assert await ask(address, client) == 0
        assert all([await peer.closed() for peer in silent[:30]])
        assert len(made.pending_handshakes) <= limits.handshakes
        for peer in silent:
            peer.close()
        await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes)


async def test_at_the_port_of_replicas_too_the_oldest_give_way(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    made: list[None] = []
    listening = BrokerSockets("127.0.0.1", 0, 0, server)
    await listening.serve_replicas(
        lambda: FrameStream(lambda _: None, lambda _: None, on_made=lambda: made.append(None))
    )
    address = f"127.0.0.1:{listening.replication_port}"
    silent = [await Peer.connect(address) for _ in range(50)]
    assert all([await peer.closed() for peer in silent[:18]])
    replica = await Peer.connect(address, client_context(client).now())
    async with asyncio.timeout(10):
        while not made:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    await listening.close()
    assert all([await peer.closed() for peer in silent])
    for peer in (replica, *silent):
        peer.close()


async def test_connections_in_all_are_limited_whether_or_not_they_make_a_handshake(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    async with serving({ECHO: echo}, tls=server_context(server), limits=ServerLimits(connections=5)) as (made, address):
        silent = [await Peer.connect(address) for _ in range(20)]
        await asyncio.to_thread(poll_until, lambda: made.refused_connections >= 5)
        assert len(made.connections) + len(made.pending_handshakes) <= 5
        for peer in silent:
            peer.close()
        await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes)
        assert await ask(address, client) == 0


async def test_a_handshake_has_its_time(tls: tuple[Tls, Tls]) -> None:
    limits = ServerLimits(handshake_seconds=0.1)
    async with serving({ECHO: echo}, tls=server_context(tls[0]), limits=limits) as (made, address):
        peer = await Peer.connect(address)
        assert await peer.closed(10)
        await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes)


async def test_a_stop_waits_for_no_handshake(tls: tuple[Tls, Tls]) -> None:
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(serving({ECHO: echo}, tls=server_context(tls[0])))
        peer = await Peer.connect(address)
        began = time.monotonic()
        await stack.aclose()
        assert await peer.closed()
        assert time.monotonic() - began < 4.0


async def test_what_comes_together_with_the_handshakes_end_is_served(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    async with serving({ECHO: echo}, tls=server_context(server)) as (made, address):
        for _ in range(20):
            peer = await Peer.connect(address, client_context(client).now())
            peer.say(*(Command(ECHO, opaque=number) for number in range(5)))
            assert [(await peer.hear()).opaque for _ in range(5)] == list(range(5))
            peer.close()
        await asyncio.to_thread(poll_until, lambda: not made.connections)


async def test_the_last_place_is_given(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    async with serving({ECHO: echo}, tls=server_context(server), limits=ServerLimits(connections=1)) as (_, address):
        assert await ask(address, client) == 0


async def test_what_a_handshake_took_is_free_when_it_is_given_up(tls: tuple[Tls, Tls]) -> None:
    """256 KiB each; a broker's process looks for circles of objects seldom."""

    def left() -> int:
        return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())

    async with serving({ECHO: echo}, tls=server_context(tls[0]), limits=ServerLimits(handshakes=2)) as (made, address):
        gc.collect()
        before = left()
        gc.disable()
        try:
            silent = [await Peer.connect(address) for _ in range(10)]
            assert all([await peer.closed() for peer in silent[:8]])
            for peer in silent:
                peer.close()
            await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes and left() <= before)
        finally:
            gc.enable()
