"""Test frame limits, which follow from message limits, and that memory follows received bytes."""

from __future__ import annotations

import asyncio
import struct

import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.wire import frame
from raymq.actors.wire.commands.fetch_commands import MAX_ANSWER_BYTES
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import MESSAGE_FRAME_BYTES, Command, frame_bytes
from raymq.actors.wire.frame_reader import SCRATCH_BYTES, FrameReader
from raymq.actors.wire.server import ServerConnection
from raymq.actors.wire.server_limits import ServerLimits
from raymq.storage.records.message_limits import DEFAULT_MESSAGE_BYTES, MAX_MESSAGE_BYTES, MAX_RECORD_OVERHEAD
from raymq.storage.records.record import HEADERS, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES
from tests.validation import check_invariants
from tests.wire_server import Peer, encode_frame, serving

MIB = 1 << 20
ECHO, GIVE = 1, 2


def echo(_: ServerConnection, request: Command) -> Command:
    return request.response(0, request.fields, bytes(request.body))


def give(_: ServerConnection, request: Command) -> Command:
    return request.response(0, body=bytes(int(request.fields["n"])))


@pytest.mark.parametrize(
    ("max_message_bytes", "expected"),
    [
        (1, 16 * MIB),
        (1024, 16 * MIB),
        (DEFAULT_MESSAGE_BYTES, 16 * MIB),
        (DEFAULT_MESSAGE_BYTES + 1, 16 * MIB + 1),
        (20 * MIB, 32 * MIB),
        (MAX_MESSAGE_BYTES, 76 * MIB),
    ],
)
def test_frame_limit_grows_with_message_limit(max_message_bytes: int, expected: int) -> None:
    assert frame_bytes(max_message_bytes) == expected
    # The longest frame: an answer that is full but for one byte, then the longest message, and the header.
    record = max_message_bytes + MAX_RECORD_OVERHEAD
    assert MAX_ANSWER_BYTES + record + ServerLimits().header_bytes < expected <= MESSAGE_FRAME_BYTES < 1 << 31


def test_record_overhead_limit_covers_largest_header() -> None:
    longest_head = max(struct.size for struct in HEADERS.values())
    assert longest_head + 2 + MAX_TOPIC_BYTES + 2 + MAX_PROPERTIES_BYTES + 8 <= MAX_RECORD_OVERHEAD


def test_default_setting_keeps_server_limits() -> None:
    assert ServerLimits(frame_bytes=frame_bytes(DEFAULT_MESSAGE_BYTES)) == ServerLimits(
        frame_bytes=16 * MIB,
        answer_bytes=16 * MIB,
        header_bytes=MIB,
        json_header_bytes=256 * 1024,
        connections=10_000,
        connection_request_bytes=64 * MIB,
        total_request_bytes=512 * MIB,
        write_high_bytes=MIB,
        write_low_bytes=MIB // 4,
        idle_seconds=120.0,
        frame_seconds=60.0,
        slice_seconds=0.0005,
        drain_seconds=5.0,
    )


@pytest.mark.parametrize("setting", [DEFAULT_MESSAGE_BYTES, 5 * MIB])
async def test_frame_above_limit_closes_connection(setting: int) -> None:
    most = frame_bytes(setting)
    async with serving({ECHO: echo}, limits=ServerLimits(frame_bytes=most, answer_bytes=most)) as (_, address):
        pool = ConnectionPool(max_frame_bytes=most + MIB)
        request = Command(ECHO, opaque=1)
        request.body = bytes(most - len(encode_frame(request)) + frame.LENGTH.size)
        answer = await pool.request(address, request, 20.0)
        assert len(answer.body) == len(request.body)
        await pool.close()
        peer = await Peer.connect(address)
        peer.writer.write(struct.pack(">i", most + 1))
        assert await peer.closed()


@pytest.mark.parametrize("most", [16 * MIB, 32 * MIB])
async def test_oversized_answer_becomes_error(most: int) -> None:
    async with serving({GIVE: give}, limits=ServerLimits(answer_bytes=most)) as (_, address):
        pool = ConnectionPool(max_frame_bytes=MESSAGE_FRAME_BYTES)
        assert len((await pool.request(address, Command(GIVE, {"n": most - 1000}), 20.0)).body) == most - 1000
        with pytest.raises(ProtocolError, match=f"above the limit of {most}"):
            await pool.request(address, Command(GIVE, {"n": most}), 20.0)
        await pool.close()


async def test_client_closes_connection_on_oversized_frame() -> None:
    async with serving({GIVE: give}, limits=ServerLimits(answer_bytes=MESSAGE_FRAME_BYTES)) as (_, address):
        pool = ConnectionPool()
        with pytest.raises(Exception, match="connection lost"):
            await pool.request(address, Command(GIVE, {"n": 16 * MIB}), 20.0)
        await pool.close()


async def test_server_memory_follows_received_bytes() -> None:
    """Check this also where the setting allows the longest frames (fault 13.21)."""
    limits = ServerLimits(frame_bytes=MESSAGE_FRAME_BYTES)
    async with serving({ECHO: echo}, limits=limits) as (server, address):
        peers = [await Peer.connect(address) for _ in range(20)]
        for peer in peers:
            peer.writer.write(struct.pack(">i", MESSAGE_FRAME_BYTES) + bytes(60_000))
            await peer.writer.drain()
        async with asyncio.timeout(20):
            while not all(each._reader.memory_bytes >= 60_000 for each in server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert len(server.connections) == len(peers)
        assert server.room.arriving_bytes <= len(peers) * SCRATCH_BYTES
        check_invariants(server.room)


def test_reader_memory_follows_received_bytes() -> None:
    reader = FrameReader(MESSAGE_FRAME_BYTES)
    data = memoryview(struct.pack(">iI", MESSAGE_FRAME_BYTES, 0) + bytes(3 * MIB))
    arrived = 0
    while data:
        place = reader.buffer()
        count = min(len(place), len(data), 100_000)
        place[:count] = data[:count]
        reader.received(count)
        assert reader.next() is None
        arrived, data = arrived + count, data[count:]
        assert reader.memory_bytes <= max(SCRATCH_BYTES, 4 * arrived)
