"""Frames as they lie in a file, and what can be read of one in which bytes have changed.

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
#: What a payload begins with: msgpack's lists of 1 to 15 members.
_LIST: Final = re.compile(rb"[\x91-\x9f]")


@dataclass(slots=True)
class Frames:
    """What a file of frames says.

    Attributes:
        entries: of its frames up to the first that is none.
        behind: of those that can be read behind that.
        damage: from which byte to which one there is no frame, with frames or the end of a whole one behind it.
        length: up to where there are frames. What lies behind is the beginning of one that was not written whole.
    """

    entries: list[tuple[Any, ...]] = field(default_factory=list)
    behind: list[tuple[Any, ...]] = field(default_factory=list)
    damage: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0


def framed(entry: tuple[Any, ...]) -> bytes:
    """The frame of an entry."""
    payload: bytes = msgpack.packb(entry)
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def read_frames(content: bytes) -> Frames:
    """All frames of a file, also behind bytes that have changed."""
    found = Frames()
    at = 0
    while at < len(content):
        end = _end_of(content, at)
        if end is None:
            following = _next(content, at)
            if following is None:
                break
            found.damage.append((at, following))
            at = found.length = following
            continue
        payload = content[at + HEAD.size : end]
        (found.behind if found.damage else found.entries).append(tuple(msgpack.unpackb(payload)))
        at = found.length = end
    return found


def _end_of(content: bytes, at: int) -> int | None:
    """Where the sound frame ends that begins there; None if none does."""
    if at + HEAD.size > len(content):
        return None
    length, crc = HEAD.unpack_from(content, at)
    end = at + HEAD.size + int(length)
    is_whole = length > 0 and end <= len(content)
    return end if is_whole and zlib.crc32(memoryview(content)[at + HEAD.size : end]) == crc else None


def _next(content: bytes, damaged: int) -> int | None:
    """Where it goes on behind the frame that should begin there; None: it was not written whole, and is the last."""
    claimed = damaged + HEAD.size + int.from_bytes(content[damaged : damaged + 4], "big")
    if damaged + HEAD.size < claimed < len(content) and _end_of(content, claimed) is not None:
        return claimed
    following = next((at for at in _possible(content, damaged + 1) if _end_of(content, at) is not None), None)
    if following is None and damaged + HEAD.size < claimed == len(content):
        return claimed  # it is the last one, and as long as it says
    return following


def _possible(content: bytes, begin: int) -> Iterator[int]:
    return (each.start() - HEAD.size for each in _LIST.finditer(content, begin + HEAD.size))
