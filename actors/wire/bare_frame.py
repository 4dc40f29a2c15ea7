"""Bare frames: their header has only code, opaque and flag, always with the same length.

    length i4 | 2, header length 3 B | 95 ce | code u4 | ce | opaque u4 | flag, nil, {} | body

An ordinary frame reader decodes them like any frame with a msgpack header: the numbers are only encoded at full width.
A client that sends many small requests one after the other writes and reads them with one `struct`, without a
`Command`.
"""

from __future__ import annotations

import struct
from typing import Final

from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import FLAG_EARLY, FLAG_RESPONSE, LENGTH, Buffer, Serialization

_HEAD: Final = struct.Struct(">i6sI1sI3s")
HEAD_BYTES: Final = _HEAD.size

_UINT32: Final = b"\xce"
_ARRAY_OF_5: Final = b"\x95"
_NIL_AND_NO_FIELDS: Final = b"\xc0\x80"
_BEGIN: Final = (Serialization.MSGPACK << 24 | HEAD_BYTES - 2 * LENGTH.size).to_bytes(4, "big") + _ARRAY_OF_5 + _UINT32
_REQUEST: Final = b"\0" + _NIL_AND_NO_FIELDS
_ANSWER: Final = bytes([FLAG_RESPONSE]) + _NIL_AND_NO_FIELDS
_EARLY: Final = bytes([FLAG_RESPONSE | FLAG_EARLY]) + _NIL_AND_NO_FIELDS
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_BEHIND_LENGTH: Final = HEAD_BYTES - LENGTH.size


def request(code: int, opaque: int, body_bytes: int) -> bytes:
    """Return the head of a request; its body follows."""
    return _HEAD.pack(_BEHIND_LENGTH + body_bytes, _BEGIN, code, _UINT32, opaque, _REQUEST)


def answer(opaque: int, body: Buffer) -> bytes:
    """Return a whole answer with the code SUCCESS."""
    return _HEAD.pack(_BEHIND_LENGTH + len(body), _BEGIN, _SUCCESS, _UINT32, opaque, _ANSWER) + body


def early_answer(opaque: int, body_bytes: int) -> bytes:
    """Return the head of a SUCCESS answer before the last one; its body follows."""
    return _HEAD.pack(_BEHIND_LENGTH + body_bytes, _BEGIN, _SUCCESS, _UINT32, opaque, _EARLY)


def read_request(buffer: Buffer, count: int) -> tuple[int, int] | None:
    """Return code and opaque if the first `count` bytes are exactly one bare request.

    Return None otherwise.
    """
    if count < HEAD_BYTES:
        return None
    length, begin, code, mark, opaque, end = _HEAD.unpack_from(buffer)
    if length != count - LENGTH.size or begin != _BEGIN or end != _REQUEST or mark != _UINT32:
        return None
    return code, opaque


def read_early_answer(buffer: Buffer, count: int) -> int | None:
    """Return the opaque if the first `count` bytes are exactly one bare early answer.

    Return None otherwise.
    """
    if count < HEAD_BYTES:
        return None
    length, begin, code, mark, opaque, end = _HEAD.unpack_from(buffer)
    if end != _EARLY or length != count - LENGTH.size or begin != _BEGIN or code != _SUCCESS or mark != _UINT32:
        return None
    return int(opaque)


def is_answer(buffer: Buffer, count: int, opaque: int) -> bool:
    """Return True if the first `count` bytes are exactly the bare answer to request `opaque`."""
    if count < HEAD_BYTES:
        return False
    return _HEAD.unpack_from(buffer) == (count - LENGTH.size, _BEGIN, _SUCCESS, _UINT32, opaque, _ANSWER)
