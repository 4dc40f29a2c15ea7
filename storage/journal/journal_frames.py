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
#: The first byte of a payload: msgpack's lists of 1 to 15 members.
_LIST: Final = re.compile(rb"[\x91-\x9f]")


@dataclass(slots=True)
class DecodedFrames:
    """The content of a file of frames.

    Attributes:
        entries: the entries of the frames up to the first damage.
        behind: the entries of the readable frames after the first damage.
        damage: the begin and end of each range of bytes without a valid frame that is followed by a frame, or that ends
            with the file like a whole frame.
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
        end = _end_of(content, at)
        if end is None:
            following = _next(content, at)
            if following is None:
                break
            found.damage.append((at, following))
            found.last, at = at, following
            found.length = at
            continue
        payload = content[at + HEAD.size : end]
        (found.behind if found.damage else found.entries).append(tuple(msgpack.unpackb(payload)))
        found.last, at = at, end
        found.length = at
    return found


def _end_of(content: bytes, at: int) -> int | None:
    """Return the end of the valid frame at `at`, or None without one."""
    if at + HEAD.size > len(content):
        return None
    length, crc = HEAD.unpack_from(content, at)
    end = at + HEAD.size + int(length)
    is_whole = length > 0 and end <= len(content)
    return end if is_whole and zlib.crc32(memoryview(content)[at + HEAD.size : end]) == crc else None


def _next(content: bytes, damaged: int) -> int | None:
    """Return the position after the damaged frame at which reading continues.

    Return None if the frame is incomplete and the last one.
    """
    claimed = damaged + HEAD.size + int.from_bytes(content[damaged : damaged + 4], "big")
    if damaged + HEAD.size < claimed < len(content) and _end_of(content, claimed) is not None:
        return claimed
    following = next((at for at in _possible(content, damaged + 1) if _end_of(content, at) is not None), None)
    if following is None and damaged + HEAD.size < claimed == len(content):
        return claimed  # the last frame, complete by its length but damaged
    return following


def _possible(content: bytes, begin: int) -> Iterator[int]:
    return (each.start() - HEAD.size for each in _LIST.finditer(content, begin + HEAD.size))
