"""What a client sent before its connection ended is carried out, however it ended; what only it waited for is not."""

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
    """A server's handlers, and what they did."""

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
    """So many requests, numbered."""
    return b"".join(encode_frame(Command(code, {"n": str(n)}, body, opaque=n + 1, flag=flag)) for n in range(count))


async def connected(address: str) -> socket.socket:
    """A client's socket that the server has accepted and served."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(made, encode_frame(Command(NOTE, {"n": "-1"})))
    await loop.sock_recv(made, 1000)
    return made


def reset(made: socket.socket) -> None:
    """Close as the system does where a program leaves answers unread: by a reset, when all that was sent has arrived.

    The server's loop, which is this thread's, stands still meanwhile.
    """
    poll_until(lambda: fcntl.ioctl(made, termios.TIOCOUTQ, bytes(4)) == bytes(4), 10)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


async def until(predicate: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not predicate():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("flag", [0, FLAG_ONEWAY], ids=["answered", "one-way"])
async def test_what_came_before_a_reset_is_carried_out(flag: int) -> None:
    """Fault 14.17: the first answer that could not be written cost all requests behind it."""
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        client = await connected(address)
        client.setblocking(True)
        client.sendall(burst(NOTE, 200, flag=flag))
        reset(client)
        await until(lambda: not server.connections)
    assert bench.noted == [-1, *range(200)]


async def test_what_came_before_a_reset_of_a_tls_connection_is_carried_out(tmp_path: Path) -> None:
    files, client_files = certificates(tmp_path)
    bench = Bench()
    async with serving(bench.handlers(), tls=server_context(files)) as (server, address):
        host, _, port = address.rpartition(":")

        def said() -> ssl.SSLSocket:
            made = (
                client_context(client_files)
                .now()
                .wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
            )
            made.sendall(encode_frame(Command(NOTE, {"n": "-1"})))
            made.recv(1000)
            return made

        client = await asyncio.to_thread(said)
        client.sendall(burst(NOTE, 200))
        reset(client)
        await until(lambda: not server.connections)
    assert bench.noted == [-1, *range(200)]


async def test_a_request_that_takes_its_time_goes_on_when_the_client_has_gone() -> None:
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


async def test_what_only_the_client_waits_for_ends_with_it() -> None:
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        client = await connected(address)
        await asyncio.get_running_loop().sock_sendall(client, burst(WAIT, 1))
        await until(lambda: bench.parked)
        client.setblocking(True)
        # An answer that fails to be written, a message taken for nobody, a wait for nobody, a last word.
        client.sendall(burst(NOTE, 2) + burst(POP, 1) + burst(WAIT, 1) + burst(NOTE, 3))
        reset(client)
        await until(lambda: not server.connections)
        assert [parked.cancelled() for parked in bench.parked] == [True] * len(bench.parked)
    assert bench.noted == [-1, 0, 1, 0, 1, 2]


@contextlib.asynccontextmanager
async def of_little_room(bench: Bench) -> AsyncIterator[tuple[Server, socket.socket]]:
    """A server that takes few bytes of requests of a connection, and one to it."""
    limits = ServerLimits(connection_request_bytes=10_000)
    async with serving(bench.handlers(), limits=limits) as (server, address):
        client = await connected(address)
        client.setblocking(True)
        yield server, client


async def test_what_a_broken_connection_brought_keeps_to_its_limits() -> None:
    bench = Bench()
    async with of_little_room(bench) as (server, client):
        client.sendall(burst(NOTE, 2) + burst(SLOW, 40, body=b"x" * 1000))
        reset(client)
        await until(lambda: bench.begun)
        assert len(bench.begun) < 10
        bench.gate.set()
        await until(lambda: not server.connections)
    assert bench.noted == [-1, 0, 1, *range(40)]


async def test_what_nobody_had_read_when_the_connection_broke_is_carried_out() -> None:
    bench = Bench()
    async with of_little_room(bench) as (server, client):
        client.sendall(burst(SLOW, 40, body=b"x" * 1000))
        await until(lambda: bench.begun)  # and no more is read of it, until some of these are done
        client.sendall(burst(NOTE, 20))
        reset(client)
        bench.gate.set()
        await until(lambda: not server.connections)
    assert sorted(bench.noted) == sorted([-1, *range(20), *range(40)])


async def test_who_looks_for_the_end_of_a_connection_is_told_once_and_after_it_too() -> None:
    bench = Bench()
    told: list[str] = []
    kept: list[ServerConnection] = []

    def watch(connection: ServerConnection, request: Command) -> Command:
        kept.append(connection)
        connection.add_close_callback(lambda: told.append("at the end"))
        return request.response(0)

    async with serving({**bench.handlers(), 9: watch}) as (server, address):
        client = await connected(address)
        client.setblocking(True)
        client.sendall(burst(NOTE, 2) + burst(9, 1))
        reset(client)
        await until(lambda: not server.connections)
        assert told == ["at the end"]
        kept[0].add_close_callback(lambda: told.append("later"))
    assert told == ["at the end", "later"]


async def test_descriptors_of_broken_connections_are_given_back() -> None:
    bench = Bench()
    async with serving(bench.handlers()) as (server, address):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            client = await connected(address)
            client.setblocking(True)
            client.sendall(burst(NOTE, 5))
            reset(client)
        await until(lambda: not server.connections)
        assert len(os.listdir("/proc/self/fd")) <= before + 1
