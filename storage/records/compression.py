"""Bodies that a producer compressed: the sys flag says that, and how (facts of RocketMQ's MessageSysFlag)."""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from raymq.storage.records.limits import MOST_MESSAGE_BYTES
from raymq.storage.records.record import SYS_FLAG_COMPRESSED

#: What a body may grow to: a few compressed bytes can claim gigabytes. RocketMQ's clients compare a body with their
#: limit before they compress it, so that none has more of its own; the brokers' limit of today says nothing of it, for
#: it may have been lowered since.
MAX_DECOMPRESSED_BYTES: Final = MOST_MESSAGE_BYTES

#: What is read of Arrow's streams at first: they take the memory for all that they are asked for.
_FIRST_BYTES: Final = 64 << 10
_KIND_MASK: Final = 0x700
#: 0 is what producers wrote before there was a choice. LZ4 is its frame format.
_KINDS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was before it was compressed; one that was not comes back as it is.

    Raises:
        ValueError: it is not what the flag says, is cut off, or grows beyond `MAX_DECOMPRESSED_BYTES`.
    """
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return body
    kind = _KINDS.get(sys_flag & _KIND_MASK)
    if kind is None:
        raise ValueError(f"unknown compression {sys_flag & _KIND_MASK:#x}")
    try:
        if kind == "zlib":
            stream = zlib.decompressobj()
            plain = stream.decompress(body, MAX_DECOMPRESSED_BYTES + 1)
            if not stream.eof and len(plain) <= MAX_DECOMPRESSED_BYTES:
                raise ValueError("zlib that is cut off")
        else:
            with pa.CompressedInputStream(pa.BufferReader(body), kind) as source:
                plain = _read(source, MAX_DECOMPRESSED_BYTES + 1)
    except (zlib.error, OSError) as error:  # Arrow's errors of broken streams are OSErrors
        raise ValueError(f"not {kind}: {error}") from None
    if len(plain) > MAX_DECOMPRESSED_BYTES:
        raise ValueError(f"more than {MAX_DECOMPRESSED_BYTES} bytes")
    return plain


def _read(source: pa.NativeFile, most: int) -> bytes:
    """What a stream has, at most so many bytes. Memory is taken for about twice of what there is."""
    pieces: list[bytes] = []
    left, step = most, _FIRST_BYTES
    while left > 0 and (piece := source.read(min(left, step))):
        pieces.append(piece)
        left -= len(piece)
        step = max(step, most - left)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def plain_or_stored(body: bytes, sys_flag: int) -> bytes:
    """The body as it was before it was compressed; one that `decompress` refuses is given as it is.

    For what readers are given: anybody may send a body that is not what its flag says, and the messages behind it are
    to be read all the same.
    """
    try:
        return decompress(body, sys_flag)
    except ValueError:
        return body
