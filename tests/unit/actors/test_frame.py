"""Test the frame codec: literal bytes, both header forms, cuts at each byte, garbage."""

from __future__ import annotations

import json
import struct

import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.wire import frame
from raymq.actors.wire.frame import FLAG_RESPONSE, Command, Serialization
from raymq.actors.wire.frame_reader import FrameReader


def decode_all(data: bytes, step: int) -> list[Command]:
    reader = FrameReader()
    found: list[Command] = []
    for start in range(0, len(data), step):
        found += reader.feed(data[start : start + step])
    assert not reader.is_mid_frame
    return found


def test_literal_binary_header() -> None:
    command = Command(105, {"topic": "orders"}, opaque=7, language="JAVA", serialization=Serialization.ROCKETMQ)
    ext = b"\x00\x05topic" + b"\x00\x00\x00\x06orders"
    header = struct.pack(">hBhii", 105, 0, 479, 7, 0) + struct.pack(">i", 0) + struct.pack(">i", len(ext)) + ext
    assert frame.encode(command) == struct.pack(">iI", 4 + len(header), (1 << 24) | len(header)) + header


def test_literal_json_header() -> None:
    encoded = frame.encode(Command(105, {"topic": "orders", "flag": True, "none": None}, b"body", opaque=7))
    length, mark = struct.unpack_from(">iI", encoded)
    assert length == len(encoded) - 4 + len(b"body")
    assert mark >> 24 == 0
    header = json.loads(encoded[8:])
    assert header["code"] == 105
    assert header["extFields"] == {"topic": "orders", "flag": "true"}
    assert header["language"] == "PYTHON"


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
def test_stream_in_chunks_yields_same_commands(serialization: Serialization, step: int) -> None:
    sent = [
        Command(10, {"a": "1", "ü": "ß"}, b"x" * n, opaque=n, remark="r" if n else None, serialization=serialization)
        for n in range(4)
    ]
    data = b"".join(frame.encode(command) + bytes(command.body) for command in sent)
    received = decode_all(data, step)
    assert [(c.code, c.fields, c.body, c.opaque, c.remark) for c in received] == [
        (c.code, c.fields, c.body, c.opaque, c.remark) for c in sent
    ]
    assert all(c.serialization is serialization for c in received)


@pytest.mark.parametrize(
    ("code", "folded"), [(200_050, 3442), (200_051, 3443), (200_053, 3445), (200_054, 3446), (200_151, 3543)]
)
def test_pop_codes_round_trip_in_binary_header(code: int, folded: int) -> None:
    encoded = frame.encode(Command(code, serialization=Serialization.ROCKETMQ))
    assert struct.unpack_from(">H", encoded, 8) == (folded,)
    assert decode_all(encoded, 99)[0].code == code
    answer = frame.encode(Command(folded, flag=FLAG_RESPONSE, serialization=Serialization.ROCKETMQ))
    assert decode_all(answer, 99)[0].code == folded, "an answer's code is no request's"
    assert decode_all(frame.encode(Command(0xFFFE, serialization=Serialization.ROCKETMQ)), 99)[0].code == 0xFFFE


def test_answer_keeps_opaque_and_serialization_of_request() -> None:
    request = Command(1, opaque=-5, serialization=Serialization.MSGPACK)
    answer = request.response(0, {"n": 1})
    assert (answer.opaque, answer.serialization, answer.is_response) == (-5, Serialization.MSGPACK, True)
    assert Command(1, flag=FLAG_RESPONSE | 2).is_oneway


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 0), id="no bytes"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", frame.MAX_FRAME_BYTES + 1), id="above 16 MiB"),
        pytest.param(struct.pack(">i", 0x7FFFFFFF), id="2 GiB"),
        pytest.param(struct.pack(">i", 2) + b"\0\0", id="too short for a header length"),
        pytest.param(struct.pack(">iI", 4, 5), id="header longer than the frame"),
        pytest.param(struct.pack(">iI", 6, (9 << 24) | 2) + b"{}", id="unknown serialisation"),
        pytest.param(struct.pack(">iI", 6, 2) + b"{}", id="JSON without a code"),
        pytest.param(struct.pack(">iI", 6, 2) + b"[]", id="JSON that is no object"),
        pytest.param(struct.pack(">iI", 7, (1 << 24) | 3) + b"abc", id="binary header cut off"),
        pytest.param(struct.pack(">iI", 7, (2 << 24) | 3) + b"abc", id="msgpack garbage"),
    ],
)
def test_garbage_raises_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(data))


def test_oversized_frame_is_refused_before_allocation() -> None:
    reader = FrameReader(max_frame_bytes=100)
    with pytest.raises(ProtocolError, match=r"1\.\.100"):
        list(reader.feed(struct.pack(">i", 101)))
    with pytest.raises(ProtocolError, match="smaller batches"):
        frame.encode(Command(1, body=b"x" * frame.MAX_FRAME_BYTES))
