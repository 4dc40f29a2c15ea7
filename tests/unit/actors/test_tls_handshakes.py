"""Test the limits on TLS connections without a handshake: number, time and memory."""

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
from tests.unit.actors.test_connection_pool import ECHO, echo
from tests.wire_server import Peer, serving


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, Tls]:
    return certificates(tmp_path_factory.mktemp("tls"))


async def send_request(address: str, client: Tls) -> int:
    """Send a request over a new connection; return the code of the answer."""
    pool = ConnectionPool(tls=client_context(client))
    try:
        return (await pool.request(address, Command(ECHO), 10)).code
    finally:
        await pool.close()


async def test_oldest_pending_handshakes_are_closed(tls: tuple[Tls, Tls]) -> None:
    """Guard against unlimited descriptors and memory for a minute each."""
    server, client = tls
    limits = ServerLimits(handshakes=8)
    async with serving({ECHO: echo}, tls=server_context(server), limits=limits) as (made, address):
        silent = [await Peer.connect(address) for _ in range(40)]
        assert await send_request(address, client) == 0
        assert all([await peer.closed() for peer in silent[:30]])
        assert len(made.pending_handshakes) <= limits.handshakes
        for peer in silent:
            peer.close()
        await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes)


async def test_replica_port_closes_oldest_pending_handshakes(tls: tuple[Tls, Tls]) -> None:
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


async def test_pending_handshakes_count_as_connections(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    async with serving({ECHO: echo}, tls=server_context(server), limits=ServerLimits(connections=5)) as (made, address):
        silent = [await Peer.connect(address) for _ in range(20)]
        await asyncio.to_thread(poll_until, lambda: made.refused_connections >= 5)
        assert len(made.connections) + len(made.pending_handshakes) <= 5
        for peer in silent:
            peer.close()
        await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes)
        assert await send_request(address, client) == 0


async def test_handshake_times_out(tls: tuple[Tls, Tls]) -> None:
    limits = ServerLimits(handshake_seconds=0.1)
    async with serving({ECHO: echo}, tls=server_context(tls[0]), limits=limits) as (made, address):
        peer = await Peer.connect(address)
        assert await peer.closed(10)
        await asyncio.to_thread(poll_until, lambda: not made.pending_handshakes)


async def test_stop_does_not_wait_for_handshakes(tls: tuple[Tls, Tls]) -> None:
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(serving({ECHO: echo}, tls=server_context(tls[0])))
        peer = await Peer.connect(address)
        began = time.monotonic()
        await stack.aclose()
        assert await peer.closed()
        assert time.monotonic() - began < 4.0


async def test_requests_sent_with_end_of_handshake_are_served(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    async with serving({ECHO: echo}, tls=server_context(server)) as (made, address):
        for _ in range(20):
            peer = await Peer.connect(address, client_context(client).now())
            peer.say(*(Command(ECHO, opaque=number) for number in range(5)))
            assert [(await peer.hear()).opaque for _ in range(5)] == list(range(5))
            peer.close()
        await asyncio.to_thread(poll_until, lambda: not made.connections)


async def test_last_free_connection_is_usable(tls: tuple[Tls, Tls]) -> None:
    server, client = tls
    async with serving({ECHO: echo}, tls=server_context(server), limits=ServerLimits(connections=1)) as (_, address):
        assert await send_request(address, client) == 0


async def test_closed_handshake_frees_its_memory(tls: tuple[Tls, Tls]) -> None:
    """Free 256 KiB each without the garbage collector, which runs rarely in a broker."""

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
