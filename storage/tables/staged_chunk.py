"""The file of one chunk of staged rows: records of one queue.

The rows wait for the commit of their write. Layout:

u4 header length | msgpack header [topic, queue id, sizes, incarnation, topic id] | records
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files.fileutil import read_head, read_whole

_HEADER_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """One chunk on disk: records of one queue."""

    topic: str
    queue_id: int
    records: memoryview
    sizes: npt.NDArray[np.int32]
    path: Path
    incarnation: int = 0
    """The incarnation of the topic when the chunk was staged."""
    topic_id: str | None = None
    """The topic id at that time; None if it was not requested. It is known longer than the log has the deletion."""


def encode_chunk(
    topic_queue: tuple[str, int],
    records: bytes | memoryview,
    sizes: npt.NDArray[np.int32],
    incarnation: int,
    topic_id: str | None,
) -> bytes:
    """Return the content of a chunk's file.

    Args:
        incarnation, topic_id: those of the chunk's topic.
    """
    header = msgpack.packb([*topic_queue, sizes.astype("<i4").tobytes(), incarnation, topic_id])
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, records))


def read_chunk(path: Path) -> StagedChunk:
    """Read a chunk.

    Raise StoreCorrupt if its file is not a chunk.
    """
    data = memoryview(read_whole(path))
    try:
        (length,) = _HEADER_LENGTH.unpack_from(data)
        start = _HEADER_LENGTH.size + length
        topic, queue_id, packed, *later = msgpack.unpackb(data[_HEADER_LENGTH.size : start])
        incarnation = int(later[0]) if later else 0
        topic_id = str(later[1]) if len(later) > 1 and later[1] is not None else None
        sizes = np.frombuffer(packed, "<i4")
        if not (isinstance(topic, str) and isinstance(queue_id, int) and int(sizes.sum()) == len(data) - start):
            raise ValueError("topic, queue and sizes do not fit the records")
    except (struct.error, ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"not a staged chunk: {error}") from None
    return StagedChunk(topic, queue_id, data[start:], sizes, path, incarnation, topic_id)


def read_chunk_queue(path: Path) -> tuple[tuple[str, int], int] | None:
    """Return a chunk's queue and number of records, from its header.

    Return None if the header cannot be read.
    """
    try:
        (length,) = _HEADER_LENGTH.unpack(read_head(path, _HEADER_LENGTH.size))
        head = read_head(path, _HEADER_LENGTH.size + length)
        topic, queue_id, packed, *_ = msgpack.unpackb(head[_HEADER_LENGTH.size :])
        return (str(topic), int(queue_id)), len(packed) // 4
    except (struct.error, ValueError, TypeError, msgpack.UnpackException):
        return None
