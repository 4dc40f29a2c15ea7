"""Encode and decode frames, including files in which some bytes have changed.

Frame: length of the payload u4 | CRC-32 of the payload u4 | payload (msgpack, a list).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

HEAD: Final = struct.Struct(">II")
#: No payload is longer. A frame that claims to end at most so many bytes behind the file was not written to its end.
MAX_PAYLOAD_BYTES: Final = 16 << 20
#: The first byte of a payload: msgpack's lists of 1 to 15 members.
_LIST: Final = re.compile(rb"[\x91-\x9f]")


@dataclass(slots=True)
class DecodedFrames:
    """The content of a file of frames.

    Attributes:
        entries: the entries of the frames up to the first damage.
        behind: the entries of the readable frames after the first damage.
        damage: the begin and end of each range of bytes without a valid frame that is followed by a frame, or that ends
            with the file like a whole frame. A frame with one wrong byte in its length is damage, too, but it is read.
        length: the end of the last frame or damage. The bytes after it are the beginning of an incomplete frame.
        last: the begin of the last frame or damage.
    """

    entries: list[tuple[Any, ...]] = field(default_factory=list)
    behind: list[tuple[Any, ...]] = field(default_factory=list)
    damage: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0
    last: int = 0


def encode_frame(entry: tuple[Any, ...]) -> bytes:
    """Return the frame of an entry."""
    return frame_of(msgpack.packb(entry))


def frame_of(payload: bytes) -> bytes:
    """Return the frame of a payload."""
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def check_encodable(value: Any) -> None:
    """Raise ValueError or OverflowError if no frame can hold a value: text with half a character, a huge number."""
    msgpack.packb(value)


def decode_frames(content: bytes) -> DecodedFrames:
    """Decode all frames of a file, also those after bytes that have changed."""
    found = DecodedFrames()
    at = 0
    while at < len(content):
        end, is_sound = _end_of(content, at), True
        if end is None:
            end, is_sound = _corrected_end(content, at), False
        entry = None if end is None else _decode(content[at + HEAD.size : end])
        if end is None:
            end = _next(content, at)
        if end is None:
            break
        if entry is None or not is_sound:
            found.damage.append((at, end))
        if entry is not None:
            (found.behind if found.damage else found.entries).append(entry)
        found.last, at = at, end
        found.length = at
    return found


def _decode(payload: bytes) -> tuple[Any, ...] | None:
    try:
        return tuple(msgpack.unpackb(payload))
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def _end_of(content: bytes, at: int) -> int | None:
    """Return the end of the valid frame at `at`, or None without one."""
    if at + HEAD.size > len(content):
        return None
    length, crc = HEAD.unpack_from(content, at)
    end = at + HEAD.size + int(length)
    is_whole = length > 0 and end <= len(content)
    return end if is_whole and zlib.crc32(memoryview(content)[at + HEAD.size : end]) == crc else None


def _corrected_end(content: bytes, at: int) -> int | None:
    """Return the end of a frame whose length has one wrong byte, else None."""
    if at + HEAD.size > len(content):
        return None
    length, crc = HEAD.unpack_from(content, at)
    begin = at + HEAD.size
    for shift in (0, 8, 16, 24):
        others = int(length) & ~(0xFF << shift)
        for byte in range(0x100):
            end = begin + others + (byte << shift)
            if begin < end <= len(content) and zlib.crc32(memoryview(content)[begin:end]) == crc:
                return end
    return None


def _next(content: bytes, damaged: int) -> int | None:
    """Return the position after the damaged frame at which reading continues.

    Return None if the frame is incomplete and the last one. Then its bytes are not searched for frames: a client
    decides what they are.
    """
    claimed = damaged + HEAD.size + int.from_bytes(content[damaged : damaged + 4], "big")
    if len(content) < claimed <= len(content) + MAX_PAYLOAD_BYTES:
        return None
    if damaged + HEAD.size < claimed < len(content) and _end_of(content, claimed) is not None:
        return claimed
    following = next((at for at in _possible(content, damaged + 1) if _end_of(content, at) is not None), None)
    if following is None and damaged + HEAD.size < claimed == len(content):
        return claimed  # the last frame, complete by its length but damaged
    return following


def _possible(content: bytes, begin: int) -> Iterator[int]:
    return (each.start() - HEAD.size for each in _LIST.finditer(content, begin + HEAD.size))
