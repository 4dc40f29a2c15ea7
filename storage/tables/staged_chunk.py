"""A chunk of rows that wait for their write's commit, as its file has it: records of one queue.

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
    """That of the topic when it was staged."""
    topic_id: str | None = None
    """The same; None: that of the queue was not asked for. It is known longer than the log has the deletion."""


def chunk_file(
    topic_queue: tuple[str, int],
    records: bytes | memoryview,
    sizes: npt.NDArray[np.int32],
    incarnation: int,
    topic_id: str | None,
) -> bytes:
    """What the file of a chunk has, whose topic has that incarnation and id."""
    header = msgpack.packb([*topic_queue, sizes.astype("<i4").tobytes(), incarnation, topic_id])
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, records))


def read_chunk(path: Path) -> StagedChunk:
    """A chunk; StoreCorrupt if its file is none."""
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
        raise StoreCorrupt(str(path), 0, f"no staged chunk: {error}") from None
    return StagedChunk(topic, queue_id, data[start:], sizes, path, incarnation, topic_id)


def read_topic_queue(path: Path) -> tuple[tuple[str, int], int] | None:
    """The queue of a chunk and how many records it has, by its header; None if that cannot be read."""
    try:
        (length,) = _HEADER_LENGTH.unpack(read_head(path, _HEADER_LENGTH.size))
        head = read_head(path, _HEADER_LENGTH.size + length)
        topic, queue_id, packed, *_ = msgpack.unpackb(head[_HEADER_LENGTH.size :])
        return (str(topic), int(queue_id)), len(packed) // 4
    except (struct.error, ValueError, TypeError, msgpack.UnpackException):
        return None
