"""Test that answers of many megabytes are sent with few copies while a slow peer reads."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import numpy as np

from raymq.actors.wire import frame
from raymq.actors.wire.frame import Command
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection

LARGE, SMALL = 1, 2
PIECES = [np.full(3 << 20, number, np.uint8) for number in range(4)]


def handlers() -> dict[int, object]:
    def large(_: ServerConnection, request: Command) -> Command:
        return request.response(0, body=b"head", pieces=[piece.data for piece in PIECES])

    def small(_: ServerConnection, request: Command) -> Command:
        return request.response(0, body=b"small")

    return {LARGE: large, SMALL: small}


def encode_request(code: int, opaque: int) -> bytes:
    return frame.encode(Command(code, opaque=opaque))


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)


def unsent(connection: ServerConnection) -> int:
    assert connection._writer is not None
    return connection._writer.unsent_bytes


async def connect(server: Server) -> tuple[socket.socket, ServerConnection]:
    bound = bind("127.0.0.1", 0)
    await server.start(bound)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, bound.getsockname())
    await wait_until(lambda: bool(server.connections))
    (connection,) = server.connections
    return peer, connection


async def read_answers(peer: socket.socket, count: int) -> list[Command]:
    loop, reader, commands = asyncio.get_running_loop(), FrameReader(), []
    async with asyncio.timeout(20):
        while len(commands) < count and (data := await loop.sock_recv(peer, 1 << 18)):
            commands += reader.feed(data)
    return commands


async def test_large_answer_waits_uncopied_and_others_follow() -> None:
    server = Server(handlers())  # type: ignore[arg-type]
    peer, connection = await connect(server)
    await asyncio.get_running_loop().sock_sendall(peer, encode_request(LARGE, 1))
    await wait_until(lambda: unsent(connection) > 0)
    assert unsent(connection) > 6 << 20  # of 12 MiB; a socket may take 4 by itself
    assert connection._transport.get_write_buffer_size() <= 4 << 20  # type: ignore[union-attr]
    for opaque in (2, 3):
        connection.send(Command(SMALL, opaque=opaque, body=b"small"))
    first, *others = await read_answers(peer, 3)
    assert bytes(first.body) == b"head" + b"".join(piece.tobytes() for piece in PIECES)
    assert [(other.opaque, other.body) for other in others] == [(2, b"small"), (3, b"small")]
    assert unsent(connection) == 0
    peer.close()
    await server.stop()


async def test_finish_sends_pending_answer_first() -> None:
    server = Server(handlers())  # type: ignore[arg-type]
    peer, connection = await connect(server)
    await asyncio.get_running_loop().sock_sendall(peer, encode_request(LARGE, 1))
    await wait_until(lambda: unsent(connection) > 0)
    connection.finish()
    (answer,) = await read_answers(peer, 1)
    assert len(answer.body) == 4 + sum(map(len, PIECES))
    peer.close()
    await server.stop()


async def test_disconnect_during_answer_frees_writer() -> None:
    server = Server(handlers())  # type: ignore[arg-type]
    peer, connection = await connect(server)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await asyncio.get_running_loop().sock_sendall(peer, encode_request(LARGE, 1))
    await wait_until(lambda: unsent(connection) > 0)
    peer.close()
    await wait_until(lambda: not server.connections)
    assert connection._writer is None
    await server.stop()
