"""The frame codec: literal bytes, both header forms, cuts at every byte, garbage."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.actors.errors import ProtocolError
from raymq.actors.wire import frame
from raymq.actors.wire.frame import FLAG_RESPONSE, Command, FrameReader, Serialization


def decode_all(data: bytes, step: int) -> list[Command]:
    reader = FrameReader()
    found: list[Command] = []
    for start in range(0, len(data), step):
        found += reader.feed(data[start : start + step])
    assert not reader.inside_a_frame
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
def test_any_cut_of_the_stream_gives_the_same_commands(serialization: Serialization, step: int) -> None:
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


def test_binary_codes_are_16_bits_and_unsigned_here() -> None:
    encoded = frame.encode(Command(200_050, serialization=Serialization.ROCKETMQ))
    assert decode_all(encoded, 99)[0].code == 200_050 & 0xFFFF == 3442


def test_an_answer_has_its_requests_opaque_and_form() -> None:
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
def test_garbage_ends_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(data))


def test_a_large_frame_is_refused_before_memory_is_taken() -> None:
    reader = FrameReader(max_frame_bytes=100)
    with pytest.raises(ProtocolError, match=r"1\.\.100"):
        list(reader.feed(struct.pack(">i", 101)))
    with pytest.raises(ProtocolError, match="smaller batches"):
        frame.encode(Command(1, body=b"x" * frame.MAX_FRAME_BYTES))


@settings(max_examples=300)
@given(
    st.sampled_from([Serialization.JSON, Serialization.ROCKETMQ]),
    st.integers(0, 0x7FFF),
    st.integers(-(2**31), 2**31 - 1),
    st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5),
    st.binary(max_size=200),
)
def test_round_trip(serialization: Serialization, code: int, opaque: int, fields: dict[str, str], body: bytes) -> None:
    command = Command(code, fields, body, opaque=opaque, serialization=serialization)
    try:
        data = frame.encode(command) + body
    except UnicodeEncodeError:
        return  # lone surrogates have no UTF-8
    received = decode_all(data, 64)[0]
    assert (received.code, received.opaque, received.fields, received.body) == (code, opaque, fields, body)


def test_mutated_frames_never_do_more_than_raise() -> None:
    rng = random.Random(7)
    base = b"".join(
        frame.encode(Command(105, {"topic": "t"}, b"body", serialization=s)) + b"body" for s in Serialization
    )
    for _ in range(3_000):
        data = bytearray(base)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        reader = FrameReader(max_frame_bytes=1 << 16)
        try:
            for command in reader.feed(data):
                assert isinstance(command.fields, dict)
        except ProtocolError:
            continue
