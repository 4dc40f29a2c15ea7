"""The result of a read: borrowed records, as they lie in the log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from raymq.storage.records.record import Record, decode


class BorrowedMemory(ABC):
    """Views of the log's memory, released by `release` or at the end of a `with`."""

    __slots__ = ()

    @abstractmethod
    def release(self) -> None:
        """Release the memory; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Lease(BorrowedMemory):
    """Consecutive records of one queue, until `release` (or the end of a `with`).

    The bytes are slices of the log's mapping. The slices keep the mapping alive, also after the store is closed, and
    never change. `parts` are these slices, to be written to a socket as they are, or one copy of them all if they are
    many and small because messages of other queues lie in between. `records` is all of them in one piece, a copy if
    there are several.

    Attributes:
        sizes: the sizes of the records.
        queue_offsets: the queue offsets of the records; not dense if they were filtered.
        next_offset: the offset for the next read.
    """

    __slots__ = ("_parts", "_records", "next_offset", "queue_offsets", "sizes")

    def __init__(
        self,
        parts: list[memoryview],
        sizes: npt.NDArray[np.int32],
        queue_offsets: npt.NDArray[np.int64],
        next_offset: int,
    ) -> None:
        self._parts: list[memoryview] | None = parts
        self._records: memoryview | None = None
        self.sizes = sizes
        self.queue_offsets = queue_offsets
        self.next_offset = next_offset

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def parts(self) -> list[memoryview]:
        """Return the records in as few pieces as is sensible; ValueError after `release`."""
        if self._parts is None:
            raise ValueError("the lease was released")
        return self._parts

    @property
    def records(self) -> memoryview:
        """Return the records in one piece; ValueError after `release`."""
        parts = self.parts
        if self._records is None:
            self._records = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return self._records

    def messages(self) -> list[Record]:
        """Return the decoded records, which own their bytes and outlive the lease."""
        messages: list[Record] = []
        for part in self.parts:
            at = 0
            while at < len(part):
                record = decode(part, at, check_crc=False)
                messages.append(record)
                at += record.size
        return messages

    def release(self) -> None:
        """Release the memory; may be called again."""
        self._parts = self._records = None
