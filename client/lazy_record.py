"""Keep the undecoded rest of received messages, and compressed bodies, until they are read.

A few compressed bytes may decompress to megabytes, and a program may hold thousands of messages whose bodies it has
read. A message therefore stores its body compressed, and decompresses it when it is read. The decompressed body is kept
as long as it is among the most recent ones of the process, over all messages.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol, Self
from weakref import ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.client.fork_hooks import register_child_reset
from raymq.storage.records.body_compression import decompress_or_raw
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.property_columns import gather
from raymq.storage.records.record_batch import Batch

#: The bound for all cached bodies of a process.
MAX_CACHE_BYTES: Final = 64 << 20
#: The overhead of a cached body in bytes, which bounds the number of empty bodies, too.
OVERHEAD_BYTES: Final = 200


class RecordSource(Protocol):
    """A source of the records of messages, without their bodies."""

    def record(self, offset: int, body: bytes) -> bytes:
        """Return the record of the message with this queue offset and body."""


class Evictable(Protocol):
    """An object with a text that it can compute again."""

    def forget(self) -> None:
        """Release the text."""


class BodyCache:
    """The texts that are kept in memory, and their total size.

    A text that was garbage-collected with its message counts until it is evicted.

    Thread-safe. A signal handler may read a body, too, even if it interrupts its own thread while that counts.
    """

    def __init__(self, most_bytes: int = MAX_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._holders: deque[tuple[ref[Evictable], int]] = deque()
        self._lock = threading.RLock()
        #: The size of all kept texts with their overhead, in bytes.
        self.bytes = 0
        register_child_reset(self, BodyCache._renew)

    def keep(self, holder: Evictable, size: int) -> None:
        """Count a holder's new text of `size` bytes, and evict the oldest texts.

        The oldest ones are evicted until the total is within the bound: `forget` of their holders is called.
        """
        entry = ref(holder), size + OVERHEAD_BYTES
        with self._lock:
            self._holders.append(entry)
            self.bytes += entry[1]
            # A signal handler that runs between two of these steps may evict some, too, or one more than necessary.
            while self.bytes > self._most_bytes and self._holders:
                oldest, evicted = self._holders.popleft()
                self.bytes -= evicted
                known = oldest()
                if known is not None:
                    known.forget()

    def _renew(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have been counting
        self.bytes = sum(size for _, size in self._holders)


body_cache: Final = BodyCache()


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
