"""What messages that came have beside their bodies, and bodies that are compressed, kept until somebody looks at it."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.client.kept_bodies import kept_bodies
from raymq.storage.records.batch import Batch
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.compression import plain_or_stored
from raymq.storage.records.property_columns import gather


class Around(Protocol):
    """What messages have around their bodies."""

    def record(self, offset: int, body: bytes) -> bytes:
        """The record of the message that has this queue offset and body."""


class CompressedBody:
    """A body as its producer compressed it, and as it was before as long as that is among the `kept_bodies`."""

    __slots__ = ("__weakref__", "_body", "_plain", "_sys_flag")

    def __init__(self, body: bytes, sys_flag: int) -> None:
        self._body = body
        self._sys_flag = sys_flag
        self._plain: bytes | None = None

    def plain(self) -> bytes:
        """The body as it was before; one that is not what its flag says is given as it is."""
        plain = self._plain
        if plain is None:
            plain = plain_or_stored(self._body, self._sys_flag)
            if plain is not self._body:
                self._plain = plain
                kept_bodies.keep(self, len(plain))
        return plain

    def forget(self) -> None:
        """Decompress it anew when somebody looks at it again."""
        self._plain = None


class OneUndecoded:
    """The record of one message without its body."""

    __slots__ = ("_head", "_tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head = head
        self._tail = tail

    def record(self, _: int, body: bytes) -> bytes:
        """See `Around`."""
        return b"".join((self._head, body, self._tail))


class Undecoded:
    """The records of a batch without their bodies; what is left of the batch lives as long as one of its messages."""

    __slots__ = ("_heads", "_offsets", "_tails")

    def __init__(self, offsets: npt.NDArray[np.int64], heads: _Pieces, tails: _Pieces) -> None:
        self._offsets = offsets
        self._heads = heads
        self._tails = tails

    @classmethod
    def of(cls, batch: Batch, offsets: npt.NDArray[np.int64]) -> Self:
        """Those of a batch's records, which have these queue offsets, ascending."""
        block = pa.py_buffer(batch.records)
        heads = _Pieces(block, batch.starts, batch.body_at)
        return cls(offsets, heads, _Pieces(block, batch.body_at + batch.body_lengths, batch.ends))

    def record(self, offset: int, body: bytes) -> bytes:
        """See `Around`."""
        row = int(np.searchsorted(self._offsets, offset))
        return b"".join((self._heads[row], body, self._tails[row]))


class _Pieces:
    """Pieces of a block, copied out of it."""

    __slots__ = ("_data", "_ends")

    def __init__(self, block: pa.Buffer, starts: Int64s, ends: Int64s) -> None:
        _, offsets, data = gather(block, starts, ends, pa.binary()).buffers()
        self._ends = np.frombuffer(offsets, np.int32)
        self._data = memoryview(data)

    def __getitem__(self, row: int) -> memoryview:
        return self._data[self._ends[row] : self._ends[row + 1]]
