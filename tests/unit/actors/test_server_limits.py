"""Test a server's limits on memory, time and connections, its fairness, stop and own requests."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from raymq.actors.errors import BrokerUnavailable, ConnectionLost, PermissionDenied, Timeout
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.connection_pool import ConnectionPool, WireConnection
from raymq.actors.wire.frame import FLAG_ONEWAY, FLAG_RESPONSE, Command, Serialization
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.server_limits import ServerLimits
from tests.wire_server import Peer, encode_frame, serving

ECHO, WAIT, GIVE, WORK = 1, 2, 3, 4
MIB = 1024 * 1024


def echo(_: ServerConnection, request: Command) -> Command:
    return request.response(0, request.fields, bytes(request.body))


async def wait_until(predicate: Callable[[], object]) -> None:
    """Poll the predicate on the event loop for at most 5 s."""
    async with asyncio.timeout(5):
        while not predicate():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


class Gate:
    """A handler that waits until the gate is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = asyncio.Event()

    async def __call__(self, _: ServerConnection, request: Command) -> Command:
        self.waiting += 1
        await self.open.wait()
        return request.response(0)


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0x7FFFFFFF, MIB + 1, 0, -1, -(2**31)])
async def test_frame_length_out_of_range_closes_connection(length: int) -> None:
    async with serving({ECHO: echo}, limits=ServerLimits(frame_bytes=MIB)) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(struct.pack(">i", length))
        assert await peer.closed()
        await wait_until(lambda: not server.connections)


async def test_header_above_limit_closes_connection() -> None:
    async with serving({ECHO: echo}, limits=ServerLimits(header_bytes=1000)) as (_, address):
        peer = await Peer.connect(address)
        peer.say(Command(ECHO, {"a": "x" * 1000}))
        assert await peer.closed()


async def test_slow_frame_closes_connection() -> None:
    limits = ServerLimits(frame_seconds=0.2, idle_seconds=60)
    async with serving({ECHO: echo}, limits=limits) as (server, address):
        slow, quick = await Peer.connect(address), await Peer.connect(address)
        data = encode_frame(Command(ECHO, body=b"x" * 200))

        async def drip() -> None:
            for byte in data:
                slow.writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        assert await slow.closed()
        dripping.cancel()
        assert len(server.connections) == 1, "a connection without a frame under way has the time to be idle"
        quick.say(Command(ECHO, opaque=7))
        assert (await quick.hear()).opaque == 7


async def test_idle_connection_is_closed() -> None:
    async with serving({ECHO: echo}, limits=ServerLimits(idle_seconds=0.2)) as (_, address):
        assert await (await Peer.connect(address)).closed()


async def test_connection_above_limit_is_closed_at_once() -> None:
    async with serving({ECHO: echo}, limits=ServerLimits(connections=1)) as (server, address):
        first, second = await Peer.connect(address), await Peer.connect(address)
        assert await second.closed()
        first.say(Command(ECHO, opaque=3))
        assert (await first.hear()).opaque == 3
        first.close()
        await wait_until(lambda: not server.connections)
        third = await Peer.connect(address)
        third.say(Command(ECHO, opaque=4))
        assert (await third.hear()).opaque == 4


# -- back-pressure -----------------------------------------------------------------------------------------------------


async def test_connection_over_memory_limit_is_not_read() -> None:
    gate = Gate()
    limits = ServerLimits(connection_request_bytes=4 * MIB)
    async with serving({WAIT: gate, ECHO: echo}, limits=limits) as (_, address):
        peer, other = await Peer.connect(address), await Peer.connect(address)
        peer.say(*(Command(WAIT, body=bytes(MIB), opaque=n) for n in range(1, 21)))
        await wait_until(lambda: gate.waiting >= 4)
        other.say(Command(ECHO, opaque=1))
        await other.hear()
        assert gate.waiting == 4, "the fifth MiB would be above the limit"
        gate.open.set()
        assert [(await peer.hear()).opaque for _ in range(20)] == list(range(1, 21))


async def test_total_memory_limit_starves_no_connection() -> None:
    gate = Gate()
    limits = ServerLimits(total_request_bytes=3 * MIB)
    async with serving({WAIT: gate}, limits=limits) as (server, address):
        peers = [await Peer.connect(address) for _ in range(6)]
        for peer in peers:
            peer.say(Command(WAIT, body=bytes(MIB), opaque=9))
        await wait_until(lambda: gate.waiting == 2 and len(server.waiting_for_memory) == 4)
        gate.open.set()
        for peer in peers:
            assert (await peer.hear()).opaque == 9
        assert not server.waiting_for_memory


async def test_closed_connection_frees_its_request_bytes() -> None:
    gate = Gate()
    async with serving({WAIT: gate}, limits=ServerLimits(total_request_bytes=2 * MIB)) as (server, address):
        first, second = await Peer.connect(address), await Peer.connect(address)
        first.say(Command(WAIT, body=bytes(MIB)))
        await wait_until(lambda: gate.waiting == 1)
        first.writer.write(encode_frame(Command(WAIT, body=bytes(MIB // 2)))[:-1])  # and one that is still arriving
        await first.writer.drain()
        second.say(Command(WAIT, body=bytes(MIB)))
        await wait_until(lambda: len(server.waiting_for_memory) == 1)
        arriving = server.room.arriving_bytes
        first.close()
        await wait_until(lambda: server.room.arriving_bytes < arriving)
        assert gate.waiting == 1, "what had arrived is under way"
        gate.open.set()
        await wait_until(lambda: gate.waiting == 2)
        second.close()


async def test_peer_with_unread_answers_is_not_served() -> None:
    served = 0

    def give(_: ServerConnection, request: Command) -> Command:
        nonlocal served
        served += 1
        return request.response(0, pieces=[bytes(MIB), memoryview(bytes(MIB))])

    limits = ServerLimits(write_high_bytes=MIB, write_low_bytes=MIB // 4)
    async with serving({GIVE: give, ECHO: echo}, limits=limits) as (_, address):
        peer, other = await Peer.connect(address), await Peer.connect(address)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.say(*(Command(GIVE, opaque=n) for n in range(1, 101)))
        await wait_until(lambda: served)
        for _ in range(20):
            other.say(Command(ECHO))
            await other.hear()
        assert served < 20, "what the kernel's buffers hold, and one answer more"
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for n in range(1, 101):
            answer = await peer.hear()
            assert (answer.opaque, len(answer.body)) == (n, 2 * MIB)


async def test_parked_answers_wait_for_peer_to_read() -> None:
    gate = asyncio.Event()
    server_side: list[ServerConnection] = []

    async def give(connection: ServerConnection, request: Command) -> Command:
        server_side.append(connection)
        await gate.wait()
        return request.response(0, pieces=[piece])

    piece = bytes(MIB)
    async with serving({GIVE: give}) as (_, address):
        peer = await Peer.connect(address)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.say(*(Command(GIVE, opaque=n) for n in range(1, 51)))
        await wait_until(lambda: len(server_side) == 50)
        gate.set()
        await wait_until(lambda: len(server_side[0].tasks) < 50)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(server_side[0].tasks) > 30
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert sorted([(await peer.hear()).opaque for _ in range(50)]) == list(range(1, 51))


async def test_busy_connection_yields_to_others() -> None:
    order: list[str] = []

    def work(_: ServerConnection, request: Command) -> Command:
        order.append(str(request.fields["of"]))
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.001
        while loop.time() < end:
            pass
        return request.response(0)

    async with serving({WORK: work}, limits=ServerLimits(slice_seconds=0.002)) as (_, address):
        busy, other = await Peer.connect(address), await Peer.connect(address)
        busy.say(*(Command(WORK, {"of": "busy"}) for _ in range(200)))
        await wait_until(lambda: order)
        other.say(Command(WORK, {"of": "other"}))
        await other.hear()
        assert order.index("other") < 100, "it did not wait for all that the busy one had sent"
        for _ in range(200):
            await busy.hear()


# -- the server's own requests -----------------------------------------------------------------------------------------


async def test_client_answers_server_requests() -> None:
    async with serving({ECHO: echo}) as (server, address):
        peer = await Peer.connect(address)
        await wait_until(lambda: server.connections)
        (connection,) = server.connections
        pending = [asyncio.ensure_future(connection.request(Command(307, {"n": str(n)}), 5)) for n in range(3)]
        requests = [await peer.hear() for _ in pending]
        assert len({request.opaque for request in requests}) == 3
        assert not any(request.is_oneway or request.is_response for request in requests)
        # The client's own request has the same opaque: each direction has its own numbering.
        peer.say(Command(ECHO, opaque=requests[0].opaque))
        for request in reversed(requests):
            peer.say(Command(5, request.fields, b"told", opaque=request.opaque, flag=FLAG_RESPONSE))
        answers = await asyncio.gather(*pending)
        assert [(a.code, a.fields["n"], a.body) for a in answers] == [(5, str(n), b"told") for n in range(3)]
        with pytest.raises(Timeout):
            await connection.request(Command(307), 0.02)
        left = asyncio.ensure_future(connection.request(Command(307), 5))
        await asyncio.sleep(0)
        peer.close()
        with pytest.raises(ConnectionLost):
            await left
        with pytest.raises(ConnectionLost):
            await connection.request(Command(307), 5)


async def test_client_answers_unknown_server_request_with_code_3() -> None:
    received: list[Command] = []

    def on_push(_: WireConnection, request: Command) -> Command | None:
        received.append(request)
        return request.response(0, {"known": True}) if request.code == 307 else None

    async with serving({ECHO: echo}) as (server, address):
        pool = ConnectionPool(on_push)
        await pool.request(address, Command(ECHO), 5)
        (connection,) = server.connections
        assert (await connection.request(Command(307), 5)).fields == {"known": "true"}
        answer = await connection.request(Command(999), 5)
        assert (answer.code, answer.remark) == (3, " request type 999 not supported")
        connection.push(Command(40, {"consumerGroup": "g"}))
        await wait_until(lambda: len(received) == 3)
        assert received[2].is_oneway
        await pool.request(address, Command(ECHO), 5)
        await pool.close()


# -- authorization and stop --------------------------------------------------------------------------------------------


async def test_authorize_sees_every_request() -> None:
    seen: list[tuple[str, int]] = []

    def authorize(connection: ServerConnection, request: Command) -> None:
        seen.append((connection.peer, request.code))
        if request.fields.get("secret") != "sesame":
            raise PermissionDenied("no")

    async with serving({ECHO: echo}, authorize=authorize) as (_, address):
        pool = ConnectionPool()
        assert (await pool.request(address, Command(ECHO, {"secret": "sesame"}), 5)).code == 0
        with pytest.raises(PermissionDenied):
            await pool.request(address, Command(ECHO), 5)
        own = (await pool.get(address))._transport
        assert own is not None
        host, port = own.get_extra_info("sockname")
        assert seen == [(f"{host}:{port}", code) for code in (RequestCode.AGREE_VERSIONS, ECHO, ECHO)]
        await pool.close()


@pytest.mark.parametrize("serialization", list(Serialization))
async def test_stop_finishes_running_requests_and_refuses_new_ones(serialization: Serialization) -> None:
    gate = Gate()
    async with serving({WAIT: gate, ECHO: echo}) as (server, address):
        peer = await Peer.connect(address)
        peer.say(Command(WAIT, opaque=1, serialization=serialization))
        await wait_until(lambda: gate.waiting)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        peer.say(Command(ECHO, opaque=2, serialization=serialization), Command(ECHO, flag=FLAG_ONEWAY))
        away = await peer.hear()
        assert (away.opaque, away.code) == (2, ResponseCode.GO_AWAY)
        peer.say(Command(ECHO, opaque=3, version=441))
        assert (await peer.hear()).code == ResponseCode.SERVICE_NOT_AVAILABLE, "what clients before 5.1.5 understand"
        with pytest.raises(ConnectionRefusedError):
            await Peer.connect(address)
        assert not stopping.done()
        gate.open.set()
        assert (await peer.hear()).opaque == 1
        await stopping
        assert await peer.closed()


async def test_stop_waits_at_most_drain_seconds() -> None:
    gate = Gate()
    async with serving({WAIT: gate}, limits=ServerLimits(drain_seconds=0.1)) as (server, address):
        peer = await Peer.connect(address)
        peer.say(Command(WAIT))
        await wait_until(lambda: gate.waiting)
        async with asyncio.timeout(2):
            await server.stop()
        assert await peer.closed()


async def test_client_maps_go_away_to_broker_unavailable() -> None:
    async with serving({ECHO: echo}) as (server, address):
        pool = ConnectionPool()
        connection = await pool.get(address)
        server.draining = True
        with pytest.raises(BrokerUnavailable, match="stopping") as caught:
            await pool.request(address, Command(ECHO), 5)
        assert type(caught.value) is BrokerUnavailable
        assert not connection.is_open, "the next request tries a new connection"
        server.draining = False
        assert (await pool.request(address, Command(ECHO), 5)).code == 0
        await pool.close()


async def test_parked_requests_of_one_client_do_not_block_others() -> None:
    """Guard against one client's parked requests blocking all others for a minute."""
    gate = Gate()
    async with serving({WAIT: gate, ECHO: echo}, limits=ServerLimits(total_request_bytes=MIB)) as (_, address):
        greedy, other = await Peer.connect(address), await Peer.connect(address)
        greedy.say(*(Command(WAIT, opaque=n) for n in range(1, 2_001)))
        await wait_until(lambda: gate.waiting > 700)
        other.say(Command(ECHO, body=bytes(100_000), opaque=5))
        assert (await other.hear()).opaque == 5
        assert gate.waiting < 1_000, "the limit holds"
        gate.open.set()
        assert {(await greedy.hear()).opaque for _ in range(2_000)} == set(range(1, 2_001))


async def test_long_header_counts_by_its_parsed_size() -> None:
    gate = Gate()
    async with serving({WAIT: gate}, limits=ServerLimits(connection_request_bytes=MIB)) as (_, address):
        peer = await Peer.connect(address)
        peer.say(*(Command(WAIT, {"a": "x" * 65_536}, opaque=n) for n in range(1, 11)))
        await wait_until(lambda: gate.waiting == 3)
        await asyncio.sleep(0)
        assert gate.waiting == 3, "each of them counts half a MiB"
        gate.open.set()
        assert [(await peer.hear()).opaque for _ in range(10)] == list(range(1, 11))
