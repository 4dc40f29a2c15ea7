"""Bare frames are frames like any other, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire import frame
from raymq.actors.wire.frame import FLAG_EARLY, FLAG_ONEWAY, FLAG_RESPONSE, LENGTH, MAX_OPAQUE, Command, Serialization
from tests.wire_server import encode_frame

CODE = 900_123


@pytest.mark.parametrize("opaque", [1, 127, 70_000, MAX_OPAQUE])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_any_reader_of_frames_understands_them(opaque: int, body: bytes) -> None:
    asked = bare.request(CODE, opaque, len(body)) + body
    expected = Command(CODE, {}, body, opaque=opaque, serialization=Serialization.MSGPACK)
    assert frame.decode(asked[LENGTH.size :]) == frame.decode(encode_frame(expected)[LENGTH.size :])
    assert LENGTH.unpack_from(asked)[0] == len(asked) - LENGTH.size
    assert bare.read_request(asked, len(asked)) == (CODE, opaque)

    told = bare.answer(opaque, body)
    answer = frame.decode(told[LENGTH.size :])
    assert (answer.code, answer.opaque, answer.flag, answer.body) == (0, opaque, FLAG_RESPONSE, body)
    assert bare.is_answer(told, len(told), opaque)
    assert told[bare.HEAD_BYTES :] == body


@pytest.mark.parametrize("opaque", [1, 70_000, MAX_OPAQUE])
def test_an_early_answer_is_one_to_any_reader(opaque: int) -> None:
    told = bare.early_answer(opaque, 4) + b"body"
    answer = frame.decode(told[LENGTH.size :])
    assert (answer.code, answer.opaque, answer.fields, answer.body) == (0, opaque, {}, b"body")
    assert (answer.is_response, answer.is_early) == (True, True)
    assert LENGTH.unpack_from(told)[0] == len(told) - LENGTH.size
    assert bare.read_early_answer(told + bytes(100), len(told)) == opaque


def test_what_is_not_one_whole_early_answer_is_none() -> None:
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


def test_what_is_not_one_whole_request_is_none() -> None:
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
        room = other + bytes(100)  # as in a buffer that had more in it before
        assert bare.read_request(room, len(other)) is None
    for at in range(bare.HEAD_BYTES):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        read = bare.read_request(changed, len(changed))
        assert read is None or read != (CODE, 7), f"byte {at}"


def test_what_is_not_the_answer_is_none() -> None:
    whole = bare.answer(7, b"body")
    error = Command(1, {}, b"body", opaque=7, flag=FLAG_RESPONSE, serialization=Serialization.MSGPACK)
    for other in (whole[:-1], whole + whole, b"", bare.request(CODE, 7, 4) + b"body", encode_frame(error)):
        assert not bare.is_answer(other + bytes(100), len(other), 7)
    assert not bare.is_answer(whole, len(whole), 8)
