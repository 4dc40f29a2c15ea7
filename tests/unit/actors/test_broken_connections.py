"""Test that requests sent before a connection breaks are carried out, but waits end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
import struct
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.wire.frame import FLAG_ONEWAY, Command
from raymq.actors.wire.server import Server
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import client_context, server_context
from tests.certificates import certificates
from tests.polling import poll_until
from tests.wire_server import Peer, encode_frame, serving

NOTE, SLOW, WAIT, POP = 1, 2, 3, 4


class Bench:
    """Hold a server's handlers, and record their calls."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.begun: list[int] = []
        self.parked: list[asyncio.Future[None]] = []
        self.popped = 0
        self.gate = asyncio.Event()

    def handlers(self) -> dict[int, Any]:
        def note(_: ServerConnection, request: Command) -> Command:
            self.noted.append(int(request.fields["n"]))
            return request.response(0)

        async def slow(_: ServerConnection, request: Command) -> Command:
            self.begun.append(int(request.fields["n"]))
            await self.gate.wait()
            self.noted.append(int(request.fields["n"]))
            return request.response(0)

        async def wait(_: ServerConnection, request: Command) -> Command:
            parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.parked.append(parked)
            await parked
            return request.response(0)

        def pop(_: ServerConnection, request: Command) -> Command:
            self.popped += 1
            return request.response(0)

        return {NOTE: note, SLOW: slow, WAIT: discard_body(wait), POP: discard_body(pop)}


def burst(code: int, count: int, *, flag: int = 0, body: bytes = b"") -> bytes:
    """Encode `count` numbered requests."""
    return b"".join(encode_frame(Command(code, {"n": str(n)}, body, opaque=n + 1, flag=flag)) for n in range(count))


async def open_connection(address: str) -> socket.socket:
    """Connect a client socket that the server has accepted and served."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(made, encode_frame(Command(NOTE, {"n": "-1"})))
    await loop.sock_recv(made, 1000)
    return made


def reset(made: socket.socket) -> None:
    """Close by a reset, as the system does when a program leaves answers unread.

    All sent bytes have arrived by then. The server's event loop, which runs in this thread, stands still meanwhile.
    """
    poll_until(lambda: fcntl.ioctl(made, termios.TIOCOUTQ, bytes(4)) == bytes(4), 10)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


async def until(predicate: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not predicate():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("flag", [0, FLAG_ONEWAY], ids=["answered", "one-way"])
async def test_requests_before_reset_are_carried_out(flag: int) -> None:
    """Guard against losing all requests after the first failed answer (fault 14.17)."""
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        client = await open_connection(address)
        client.setblocking(True)
        client.sendall(burst(NOTE, 200, flag=flag))
        reset(client)
        await until(lambda: not server.connections)
    assert bench.noted == [-1, *range(200)]


async def test_requests_before_tls_reset_are_carried_out(tmp_path: Path) -> None:
    files, client_files = certificates(tmp_path)
    bench = Bench()
    async with serving(bench.handlers(), tls=server_context(files)) as (server, address):
        host, _, port = address.rpartition(":")

        def open_tls_socket() -> ssl.SSLSocket:
            made = (
                client_context(client_files)
                .now()
                .wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
            )
            made.sendall(encode_frame(Command(NOTE, {"n": "-1"})))
            made.recv(1000)
            return made

        client = await asyncio.to_thread(open_tls_socket)
        client.sendall(burst(NOTE, 200))
        reset(client)
        await until(lambda: not server.connections)
    assert bench.noted == [-1, *range(200)]


async def test_slow_requests_finish_after_client_disconnects() -> None:
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        peer = await Peer.connect(address)
        peer.say(*(Command(SLOW, {"n": str(n)}, opaque=n + 1) for n in range(3)))
        await until(lambda: len(bench.begun) == 3)
        peer.writer.close()
        await peer.writer.wait_closed()
        assert len(server.connections) == 1, "its requests are not done"
        bench.gate.set()
        await until(lambda: not server.connections)
    assert bench.noted == [0, 1, 2]


async def test_waits_are_cancelled_when_client_disconnects() -> None:
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        client = await open_connection(address)
        await asyncio.get_running_loop().sock_sendall(client, burst(WAIT, 1))
        await until(lambda: bench.parked)
        client.setblocking(True)
        # Answers that fail to be written, a pop and a wait without a client, and final notes.
        client.sendall(burst(NOTE, 2) + burst(POP, 1) + burst(WAIT, 1) + burst(NOTE, 3))
        reset(client)
        await until(lambda: not server.connections)
        assert [parked.cancelled() for parked in bench.parked] == [True] * len(bench.parked)
    assert bench.noted == [-1, 0, 1, 0, 1, 2]


@contextlib.asynccontextmanager
async def serving_with_small_limits(bench: Bench) -> AsyncIterator[tuple[Server, socket.socket]]:
    """Serve with a small limit of request bytes per connection; yield server and client."""
    limits = ServerLimits(connection_request_bytes=10_000)
    async with serving(bench.handlers(), limits=limits) as (server, address):
        client = await open_connection(address)
        client.setblocking(True)
        yield server, client


async def test_requests_of_broken_connection_obey_limits() -> None:
    bench = Bench()
    async with serving_with_small_limits(bench) as (server, client):
        client.sendall(burst(NOTE, 2) + burst(SLOW, 40, body=b"x" * 1000))
        reset(client)
        await until(lambda: bench.begun)
        assert len(bench.begun) < 10
        bench.gate.set()
        await until(lambda: not server.connections)
    assert bench.noted == [-1, 0, 1, *range(40)]


async def test_unread_requests_are_carried_out_after_reset() -> None:
    bench = Bench()
    async with serving_with_small_limits(bench) as (server, client):
        client.sendall(burst(SLOW, 40, body=b"x" * 1000))
        await until(lambda: bench.begun)  # the server reads no more until some of these are done
        client.sendall(burst(NOTE, 20))
        reset(client)
        bench.gate.set()
        await until(lambda: not server.connections)
    assert sorted(bench.noted) == sorted([-1, *range(20), *range(40)])


async def test_close_callback_runs_once_even_if_added_late() -> None:
    bench = Bench()
    calls: list[str] = []
    kept: list[ServerConnection] = []

    def watch(connection: ServerConnection, request: Command) -> Command:
        kept.append(connection)
        connection.add_close_callback(lambda: calls.append("at the end"))
        return request.response(0)

    async with serving({**bench.handlers(), 9: watch}) as (server, address):
        client = await open_connection(address)
        client.setblocking(True)
        client.sendall(burst(NOTE, 2) + burst(9, 1))
        reset(client)
        await until(lambda: not server.connections)
        assert calls == ["at the end"]
        kept[0].add_close_callback(lambda: calls.append("later"))
    assert calls == ["at the end", "later"]


async def test_broken_connections_release_descriptors() -> None:
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            client = await open_connection(address)
            client.setblocking(True)
            client.sendall(burst(NOTE, 5))
            reset(client)
        await until(lambda: not server.connections)
        assert len(os.listdir("/proc/self/fd")) <= before + 1
