"""Test that bare frames are ordinary frames, and that no other bytes pass for one."""

from __future__ import annotations

import pytest

from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire import frame
from raymq.actors.wire.frame import FLAG_EARLY, FLAG_ONEWAY, FLAG_RESPONSE, LENGTH, MAX_OPAQUE, Command, Serialization
from tests.wire_server import encode_frame

CODE = 900_123


@pytest.mark.parametrize("opaque", [1, 127, 70_000, MAX_OPAQUE])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_frame_decoder_reads_bare_frames(opaque: int, body: bytes) -> None:
    request_bytes = bare.request(CODE, opaque, len(body)) + body
    expected = Command(CODE, {}, body, opaque=opaque, serialization=Serialization.MSGPACK)
    assert frame.decode(request_bytes[LENGTH.size :]) == frame.decode(encode_frame(expected)[LENGTH.size :])
    assert LENGTH.unpack_from(request_bytes)[0] == len(request_bytes) - LENGTH.size
    assert bare.read_request(request_bytes, len(request_bytes)) == (CODE, opaque)

    answer_bytes = bare.answer(opaque, body)
    answer = frame.decode(answer_bytes[LENGTH.size :])
    assert (answer.code, answer.opaque, answer.flag, answer.body) == (0, opaque, FLAG_RESPONSE, body)
    assert bare.is_answer(answer_bytes, len(answer_bytes), opaque)
    assert answer_bytes[bare.HEAD_BYTES :] == body


@pytest.mark.parametrize("opaque", [1, 70_000, MAX_OPAQUE])
def test_frame_decoder_reads_early_answer(opaque: int) -> None:
    answer_bytes = bare.early_answer(opaque, 4) + b"body"
    answer = frame.decode(answer_bytes[LENGTH.size :])
    assert (answer.code, answer.opaque, answer.fields, answer.body) == (0, opaque, {}, b"body")
    assert (answer.is_response, answer.is_early) == (True, True)
    assert LENGTH.unpack_from(answer_bytes)[0] == len(answer_bytes) - LENGTH.size
    assert bare.read_early_answer(answer_bytes + bytes(100), len(answer_bytes)) == opaque


def test_other_bytes_are_no_early_answer() -> None:
    whole = bare.early_answer(7, 4) + b"body"
    last = bare.answer(7, b"body")
    failed = Command(1, {}, b"body", 1 << 20, FLAG_RESPONSE | FLAG_EARLY, serialization=Serialization.MSGPACK)
    for other in (
        whole[:-1],
        whole + b"x",
        whole + whole,
        whole[: bare.HEAD_BYTES - 1],
        b"",
        last,
        encode_frame(failed),
    ):
        assert bare.read_early_answer(other + bytes(100), len(other)) is None
    for at in range(bare.HEAD_BYTES):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        assert bare.read_early_answer(changed, len(changed)) != 7, f"byte {at}"


def test_other_bytes_are_no_bare_request() -> None:
    whole = bare.request(CODE, 7, 4) + b"body"
    usual = Command(CODE, {}, b"body", opaque=7, serialization=Serialization.MSGPACK)
    others = [
        whole[:-1],
        whole + b"x",
        whole + whole,
        whole[: bare.HEAD_BYTES - 1],
        b"",
        bare.answer(7, b"body"),
        encode_frame(usual),
        encode_frame(Command(CODE, {}, b"body", opaque=7)),
        encode_frame(Command(CODE, {}, b"body", opaque=7, flag=FLAG_ONEWAY, serialization=Serialization.MSGPACK)),
        encode_frame(Command(CODE, {"a": 1}, b"body", opaque=1 << 20, serialization=Serialization.MSGPACK)),
    ]
    for other in others:
        room = other + bytes(100)  # as in a buffer with older bytes behind
        assert bare.read_request(room, len(other)) is None
    for at in range(bare.HEAD_BYTES):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        read = bare.read_request(changed, len(changed))
        assert read is None or read != (CODE, 7), f"byte {at}"


def test_other_bytes_are_no_bare_answer() -> None:
    whole = bare.answer(7, b"body")
    error = Command(1, {}, b"body", opaque=7, flag=FLAG_RESPONSE, serialization=Serialization.MSGPACK)
    for other in (whole[:-1], whole + whole, b"", bare.request(CODE, 7, 4) + b"body", encode_frame(error)):
        assert not bare.is_answer(other + bytes(100), len(other), 7)
    assert not bare.is_answer(whole, len(whole), 8)
