"""Describe chunks of staged rows, and encode them as records of the commit log.

A chunk is a number of rows (records of one queue) that wait for the commit of their write. `ChunkEntry` is what the
table of staged writes has of it. Its encoded form,

    u4 header length | msgpack header [topic, queue id, sizes of the rows, ...] | rows

is cut into the bodies of one or more records of STAGED_TOPIC. Each of them has the name of the chunk as a property.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Buffer, Record, encode, encode_properties
from raymq.storage.staged_topic import STAGED_QUEUE, STAGED_TOPIC

_HEADER_LENGTH = struct.Struct(">I")
_NO_HOST: Final = bytes(8)

#: Part and number.
ChunkKey = tuple[str, int]
#: Physical offset and size of each record of a chunk.
Places = tuple[tuple[int, int], ...]
#: Begin and end in the log; None: the end of the log.
Attempt = tuple[int, int | None]


class MissingRows(NamedTuple):
    """How many rows of a commit are missing in the log, and why."""

    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """One chunk of an unfinished transaction.

    Attributes:
        incarnation, topic_id: those of the topic when the chunk was staged. The id is None if it was not known; it is
            known longer than the log has the deletion.
        places: its records in the log; none if they are lost.
        attempts: the parts of the log to which commits appended, or may have appended, rows of it.
        done_at: where the log ended when all of it had been appended; None: it is not done.
        lost: the rows that cannot be appended.
    """

    part: str
    number: int
    topic: str
    queue_id: int
    rows: int
    incarnation: int = 0
    topic_id: str | None = None
    places: Places = ()
    attempts: tuple[Attempt, ...] = ()
    done_at: int | None = None
    lost: MissingRows | None = None

    @property
    def key(self) -> ChunkKey:
        """Return part and number."""
        return self.part, self.number

    @property
    def begin(self) -> int | None:
        """Return the physical offset of its first record, or None."""
        return min((offset for offset, _ in self.places), default=None)


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """The rows of one chunk: records of one queue, and their sizes."""

    topic: str
    queue_id: int
    records: memoryview
    sizes: npt.NDArray[np.int32]


def clamped_progress(chunk: ChunkEntry, bounds: RecoveryBounds, *, is_decided: bool) -> ChunkEntry:
    """Return a chunk with the progress that the log still has.

    After a power loss, a chunk of a decided commit that is not done may be anywhere: see `clamped_commit`.
    """
    done_at = chunk.done_at if chunk.done_at is None or bounds.has(chunk.done_at) else None
    attempts = tuple(each for each in ended_attempts(chunk.attempts, bounds.log_end) if bounds.has(each[0]))
    if bounds.memory_lost and is_decided and done_at is None:
        attempts = ()
    return replace(chunk, attempts=attempts, done_at=done_at)


def ended_attempts(attempts: Iterable[Attempt], log_end: int) -> tuple[Attempt, ...]:
    """Return the attempts with their ends limited to `log_end`."""
    return tuple((begin, log_end if end is None else min(end, log_end)) for begin, end in attempts)


def chunk_name(transaction: str, part: str, number: int) -> str:
    """Return the name of a chunk in records, errors and log lines."""
    return f"{transaction}.{part}.{number:06d}"


def encode_chunk(
    topic_queue: tuple[str, int], records: bytes | memoryview, sizes: npt.NDArray[np.int32], *others: object
) -> bytes:
    """Return the encoded form of a chunk; `others` are further values of its header."""
    header = msgpack.packb([*topic_queue, sizes.astype("<i4").tobytes(), *others])
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, records))


def encode_pieces(content: bytes, name: str, most_bytes: int, born_timestamp_ms: int) -> list[bytes]:
    """Return the records of an encoded chunk, each with a body of at most `most_bytes`."""
    properties = encode_properties({names.STAGED_CHUNK: name})
    view = memoryview(content)
    return [
        encode(
            *STAGED_QUEUE,
            bytes(view[begin : begin + most_bytes]),
            properties,
            born_timestamp_ms=born_timestamp_ms,
            born_host=_NO_HOST,
        )
        for begin in range(0, len(content), most_bytes)
    ]


def is_piece_of(record: Record, name: str) -> bool:
    """Return True if a record is one of a chunk's records."""
    return record.topic == STAGED_TOPIC and record.properties.get(names.STAGED_CHUNK) == name


def decode_chunk(content: Buffer, name: str) -> StagedChunk:
    """Decode a chunk. The rows are not checked.

    Raise StoreCorrupt if it is not an encoded chunk.
    """
    data = memoryview(content)
    try:
        (topic, queue_id, packed, *_), start = _header(data)
        sizes = np.frombuffer(packed, "<i4")
        if not (isinstance(topic, str) and isinstance(queue_id, int) and int(sizes.sum()) == len(data) - start):
            raise ValueError("topic, queue and sizes do not fit the records")
    except (struct.error, ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(name, 0, f"not a staged chunk: {error}") from None
    return StagedChunk(topic, queue_id, data[start:], sizes)


def decode_header(content: Buffer) -> tuple[list[Any], int] | None:
    """Return the values of a chunk's header and its number of rows.

    Return None if the header cannot be read.
    """
    try:
        values, _ = _header(memoryview(content))
        topic, queue_id, packed, *others = values
        return [str(topic), int(queue_id), *others], len(packed) // 4
    except (struct.error, ValueError, TypeError, msgpack.UnpackException):
        return None


def _header(data: memoryview) -> tuple[list[Any], int]:
    """Return the values of the header, and where the rows begin."""
    (length,) = _HEADER_LENGTH.unpack_from(data)
    start = _HEADER_LENGTH.size + length
    values = msgpack.unpackb(data[_HEADER_LENGTH.size : start])
    return list(values), start
