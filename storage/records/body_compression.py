"""Decompress message bodies that a producer compressed.

The sys flag says whether a body is compressed, and with which algorithm, as in RocketMQ's MessageSysFlag.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from raymq.storage.records.message_limits import MAX_MESSAGE_BYTES
from raymq.storage.records.record import SYS_FLAG_COMPRESSED

#: The limit of a decompressed body, because a few compressed bytes can expand to gigabytes. RocketMQ's clients compare
#: a body with their limit before they compress it, so a longer body cannot come from them. The brokers' current limit
#: is not used, because it may have been lowered since the message was sent.
MAX_DECOMPRESSED_BYTES: Final = MAX_MESSAGE_BYTES

#: The size of the first read: Arrow's streams allocate memory for all bytes that a read requests.
_FIRST_BYTES: Final = 64 << 10
_KIND_MASK: Final = 0x700
#: Producers wrote 0 before there was a choice of algorithms. LZ4 means the LZ4 frame format.
_KINDS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body; a body that is not compressed is returned unchanged.

    Raises:
        ValueError: the body is not what the flag says, is cut off, or grows beyond `MAX_DECOMPRESSED_BYTES`.
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
                raise ValueError("truncated zlib data")
        else:
            with pa.CompressedInputStream(pa.BufferReader(body), kind) as source:
                plain = _read(source, MAX_DECOMPRESSED_BYTES + 1)
    except (zlib.error, OSError) as error:  # Arrow's errors of broken streams are OSErrors
        raise ValueError(f"not {kind}: {error}") from None
    if len(plain) > MAX_DECOMPRESSED_BYTES:
        raise ValueError(f"more than {MAX_DECOMPRESSED_BYTES} bytes")
    return plain


def _read(source: pa.NativeFile, most: int) -> bytes:
    """Return the bytes of a stream, at most `most`.

    It allocates about twice the number of bytes that the stream holds.
    """
    pieces: list[bytes] = []
    remaining, step = most, _FIRST_BYTES
    while remaining > 0 and (piece := source.read(min(remaining, step))):
        pieces.append(piece)
        remaining -= len(piece)
        step = max(step, most - remaining)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompress_or_raw(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body, or the body as stored if `decompress` rejects it.

    Readers use this: any client may send a body that does not match its flag, and the messages after it must stay
    readable.
    """
    try:
        return decompress(body, sys_flag)
    except ValueError:
        return body
