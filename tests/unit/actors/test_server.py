"""Test server and connections over real loopback sockets: order, errors, limits, close."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raymq.actors.errors import (
    BrokerUnavailable,
    ClientClosed,
    ConnectionLost,
    InvalidInput,
    OffsetOutOfRange,
    ProtocolError,
    StoreCorrupt,
    Timeout,
)
from raymq.actors.wire import error_codec, frame
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import FLAG_ONEWAY, MAX_FRAME_BYTES, Command, Serialization
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection, discard_body

ECHO, SLOW, FAIL, NEVER, CLOSE = 1, 2, 3, 4, 5


class Bench:
    """Provide the handlers of a server, and record what happened."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self.closed = asyncio.Event()
        self.error: Exception = InvalidInput("field", "limit", "actual")

    def handlers(self) -> dict[int, Any]:
        async def slow(_: ServerConnection, request: Command) -> Command:
            await asyncio.sleep(0.05)
            return request.response(0, request.fields)

        async def never(connection: ServerConnection, _: Command) -> Command | None:
            connection.add_close_callback(self.closed.set)
            await asyncio.get_running_loop().create_future()
            return None

        def fail(_: ServerConnection, __: Command) -> Command:
            raise self.error

        def close(connection: ServerConnection, _: Command) -> None:
            connection.close()

        return {ECHO: self._echo, SLOW: slow, FAIL: fail, NEVER: discard_body(never), CLOSE: close}

    def _echo(self, _: ServerConnection, request: Command) -> Command:
        self.seen.append((request.code, str(request.fields.get("n"))))
        return request.response(0, request.fields, request.body)


@asynccontextmanager
async def run_server(bench: Bench) -> AsyncIterator[tuple[ConnectionPool, str]]:
    server = Server(bench.handlers())
    bound = bind("127.0.0.1", 0)
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    await server.start(bound)
    pool = ConnectionPool()
    try:
        yield pool, address
    finally:
        await pool.close()
        await server.stop()


async def send_raw(address: str, data: bytes, read: int = 1 << 20) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read(read)
    finally:
        writer.close()


@pytest.mark.parametrize("serialization", list(Serialization))
async def test_requests_of_connection_run_in_order(serialization: Serialization) -> None:
    bench = Bench()
    async with run_server(bench) as (pool, address):
        commands = [Command(ECHO, {"n": str(n)}, b"x" * n, serialization=serialization) for n in range(200)]
        answers = await asyncio.gather(*(pool.request(address, command, 5) for command in commands))
    assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(200)]
    assert [len(answer.body) for answer in answers] == list(range(200))
    assert [n for _, n in bench.seen] == [str(n) for n in range(200)]


async def test_slow_request_does_not_block_others() -> None:
    async with run_server(Bench()) as (pool, address):
        slow = asyncio.ensure_future(pool.request(address, Command(SLOW, {"n": "slow"}), 5))
        await pool.request(address, Command(ECHO, {"n": "1"}), 5)
        assert not slow.done()
        assert (await slow).fields == {"n": "slow"}


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("body", "1..4 bytes", b"12345"),
        OffsetOutOfRange(7, 1, 5),
        StoreCorrupt("/x/00", 17, "bad CRC"),
    ],
)
async def test_raymq_errors_keep_type_and_fields(error: Exception) -> None:
    bench = Bench()
    bench.error = error
    async with run_server(bench) as (pool, address):
        with pytest.raises(type(error)) as caught:
            await pool.request(address, Command(FAIL), 5)
    assert str(caught.value) == str(error)
    told = {k: v for k, v in error.__dict__.items() if isinstance(v, str | int | None)}
    assert {k: v for k, v in caught.value.__dict__.items() if k != "code"} == told
    assert getattr(caught.value, "code", None) in ResponseCode.__members__


async def test_other_errors_become_protocol_error_with_text() -> None:
    bench = Bench()
    bench.error = ZeroDivisionError("by zero")
    async with run_server(bench) as (pool, address):
        with pytest.raises(ProtocolError, match="ZeroDivisionError: by zero") as caught:
            await pool.request(address, Command(FAIL), 5)
    assert caught.value.code == "SYSTEM_ERROR"


@pytest.mark.parametrize("told", ["[]", "nonsense", '["os.system", "x", {}]', '["RayMQError", "x", {"args": 1}]'])
def test_unknown_error_payload_is_decoded_safely(told: str) -> None:
    error = error_codec.error_from_response(Command(ResponseCode.SYSTEM_ERROR, {error_codec.FIELD: told}, remark="r"))
    assert isinstance(error, Exception)
    assert error.code == "SYSTEM_ERROR"


async def test_unknown_request_code_is_answered_with_3() -> None:
    async with run_server(Bench()) as (_, address):
        data = await send_raw(address, frame.encode(Command(999, opaque=42)))
    answer = next(FrameReader().feed(data))
    assert (answer.code, answer.opaque, answer.remark) == (3, 42, " request type 999 not supported")


async def test_oneway_requests_get_no_answer_and_no_error() -> None:
    bench = Bench()
    async with run_server(bench) as (_, address):
        oneway = [Command(code, {"n": "1"}, flag=FLAG_ONEWAY) for code in (FAIL, ECHO, 999)]
        data = await send_raw(address, b"".join(map(frame.encode, [*oneway, Command(ECHO, {"n": "2"}, opaque=9)])))
    assert [command.opaque for command in FrameReader().feed(data)] == [9]
    assert bench.seen == [(ECHO, "1"), (ECHO, "2")]


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n" * 3, struct.pack(">i", MAX_FRAME_BYTES + 1), struct.pack(">iI", 6, 2) + b"[]"],
)
async def test_garbage_closes_only_its_connection(garbage: bytes) -> None:
    async with run_server(Bench()) as (pool, address):
        assert await send_raw(address, garbage) == b""
        assert (await pool.request(address, Command(ECHO, {"n": "1"}), 5)).fields == {"n": "1"}


async def test_closed_connection_runs_close_callbacks() -> None:
    bench = Bench()
    async with run_server(bench) as (pool, address):
        with pytest.raises(Timeout):
            await pool.request(address, Command(NEVER), 0.05)
        await pool.close()
        async with asyncio.timeout(5):
            await bench.closed.wait()


async def test_lost_connection_raises_connection_lost() -> None:
    async with run_server(Bench()) as (pool, address):
        with pytest.raises(ConnectionLost):
            await pool.request(address, Command(CLOSE), 5)
        assert (await pool.request(address, Command(ECHO, {"n": "1"}), 5)).code == 0


async def test_unreachable_address_raises_broker_unavailable() -> None:
    pool = ConnectionPool()
    bound = bind("127.0.0.1", 0)
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    with pytest.raises(BrokerUnavailable, match="cannot connect") as caught:
        await pool.request(address, Command(ECHO), 5)
    assert not isinstance(caught.value, ConnectionLost)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="cannot connect: connection refused; next attempt in"):
        await pool.request(address, Command(ECHO), 5)
    assert time.monotonic() - began < 1.0, "an address that refuses is left alone for a while"
    bound.close()
    with pytest.raises(BrokerUnavailable):
        await pool.get("no address", 1)
    await pool.close()
    with pytest.raises(ClientClosed):
        await pool.get(address)


def test_json_errors_are_plain_data() -> None:
    answer = error_codec.error_response(Command(1), OffsetOutOfRange(1, 2, 3))
    name, _, state = json.loads(answer.fields[error_codec.FIELD])
    assert (name, state) == ("OffsetOutOfRange", {"offset": 1, "min_offset": 2, "max_offset": 3})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_accepted_connections_have_tcp_nodelay(host: str) -> None:
    server = Server({ECHO: lambda _, request: request.response(0)})
    bound = bind(host, 0)
    await server.start(bound)
    pool = ConnectionPool()
    await pool.request(f"[{host}]:{bound.getsockname()[1]}", Command(ECHO), 5)
    (connection,) = server.connections
    assert connection._transport is not None
    accepted = connection._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await pool.close()
    await server.stop()


@pytest.mark.parametrize("turns", range(8))
async def test_connection_during_server_stop_is_closed(turns: int) -> None:
    """Guard against an accepted connection that stays open after the stop."""
    server = Server({})
    bound = bind("127.0.0.1", 0)
    await server.start(bound)
    client = socket.create_connection(bound.getsockname())
    client.settimeout(5)
    for _ in range(turns):
        await asyncio.sleep(0)
    await server.stop()
    assert not server.connections
    with contextlib.closing(client), contextlib.suppress(ConnectionResetError):
        assert await asyncio.to_thread(client.recv, 1) == b""
