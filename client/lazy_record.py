"""Keep the undecoded rest of received messages, and compressed bodies, until they are read."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.client.body_cache import body_cache
from raymq.storage.records.body_compression import decompress_or_raw
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.property_columns import gather
from raymq.storage.records.record_batch import Batch


class RecordSource(Protocol):
    """A source of the records of messages, without their bodies."""

    def record(self, offset: int, body: bytes) -> bytes:
        """Return the record of the message with this queue offset and body."""


class CompressedBody:
    """A compressed body of a message.

    The decompressed body is kept, too, as long as it is in the `body_cache`.
    """

    __slots__ = ("__weakref__", "_body", "_plain", "_sys_flag")

    def __init__(self, body: bytes, sys_flag: int) -> None:
        self._body = body
        self._sys_flag = sys_flag
        self._plain: bytes | None = None

    def plain(self) -> bytes:
        """Return the decompressed body.

        A body that is not compressed as its flag says is returned unchanged.
        """
        plain = self._plain
        if plain is None:
            plain = decompress_or_raw(self._body, self._sys_flag)
            if plain is not self._body:
                self._plain = plain
                body_cache.keep(self, len(plain))
        return plain

    def forget(self) -> None:
        """Release the decompressed body; it is decompressed again at the next read."""
        self._plain = None


class LazyRecord:
    """The record of one message without its body."""

    __slots__ = ("_head", "_tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head = head
        self._tail = tail

    def record(self, _: int, body: bytes) -> bytes:
        """See `RecordSource`."""
        return b"".join((self._head, body, self._tail))


class LazyBatchRecords:
    """The records of a batch without their bodies.

    They stay in memory as long as one of the batch's messages does.
    """

    __slots__ = ("_heads", "_offsets", "_tails")

    def __init__(self, offsets: npt.NDArray[np.int64], heads: _Pieces, tails: _Pieces) -> None:
        self._offsets = offsets
        self._heads = heads
        self._tails = tails

    @classmethod
    def of(cls, batch: Batch, offsets: npt.NDArray[np.int64]) -> Self:
        """Return the records of a batch, which have these queue offsets, ascending."""
        block = pa.py_buffer(batch.records)
        heads = _Pieces(block, batch.starts, batch.body_at)
        return cls(offsets, heads, _Pieces(block, batch.body_at + batch.body_lengths, batch.ends))

    def record(self, offset: int, body: bytes) -> bytes:
        """See `RecordSource`."""
        row = int(np.searchsorted(self._offsets, offset))
        return b"".join((self._heads[row], body, self._tails[row]))


class _Pieces:
    """Byte ranges copied out of a block."""

    __slots__ = ("_data", "_ends")

    def __init__(self, block: pa.Buffer, starts: Int64s, ends: Int64s) -> None:
        _, offsets, data = gather(block, starts, ends, pa.binary()).buffers()
        self._ends = np.frombuffer(offsets, np.int32)
        self._data = memoryview(data)

    def __getitem__(self, row: int) -> memoryview:
        return self._data[self._ends[row] : self._ends[row + 1]]
