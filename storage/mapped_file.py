"""One file of fixed size, mapped into memory as a whole.

The mapping is closed when the last view of it is gone: `close` drops the file's own reference, a lease that still
holds a slice keeps the memory. Nothing here knows what the bytes mean or how far they are written.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from raymq.storage import fileutil

_MAP_NORESERVE: Final = 0x4000
#: Of a file that is only read: what is written stays in memory, and no memory is set aside for that.
_PRIVATE: Final = mmap.MAP_PRIVATE | _MAP_NORESERVE


class MappedFile:
    """A mapped file; `start` is the position of its first byte in the sequence of files it belongs to.

    Thread rule: writing and `allocate` belong to the store's writer, `sync` may be called from any thread.
    """

    def __init__(self, path: Path, start: int, size: int, *, writable: bool, allocate_step_bytes: int = 0) -> None:
        """Map `path`, which is created or grown to `size` if `writable`.

        Otherwise nothing reaches the disk: what is written to `view` stays in memory, as does a file that is missing.

        Args:
            allocate_step_bytes: how far ahead of a write blocks are allocated; 0 = the whole file.
        """
        self.path = path
        self.start = start
        self.size = size
        #: Set by whoever finds the file, for `OpenFiles`.
        self.used = True
        self._step = allocate_step_bytes or size
        self._allocated_from = self._allocated_to = 0
        self._ahead_from = self._ahead_to = -1
        self._writable = writable
        if writable:
            self._fd = fileutil.create_sparse(path, size)
        else:
            self._fd = os.open(path if path.exists() else os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            present = os.fstat(self._fd).st_size
            if present >= size:
                self._mapping = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED if writable else _PRIVATE)
            else:
                # Read-only and cut off: what is missing shows as zeros.
                self._mapping = mmap.mmap(-1, size)
                self._mapping[:present] = os.pread(self._fd, present, 0)
        except BaseException:
            os.close(self._fd)
            raise
        self.view = memoryview(self._mapping)

    def allocate(self, begin: int, end: int) -> None:
        """Make sure that bytes begin..end of the file have blocks, so that writing them cannot raise SIGBUS.

        Raises:
            StoreFull: the disk has no room; nothing was written.
        """
        if (self._allocated_from <= begin and end <= self._allocated_to) or not self._writable:
            return
        if self._ahead_from <= begin and end <= self._ahead_to:
            return
        if not self._allocated_from <= begin <= self._allocated_to:
            self._allocated_from = self._allocated_to = begin
        target = min(self.size, -(-end // self._step) * self._step)
        fileutil.allocate(self._fd, self._allocated_to, target - self._allocated_to, self.path)
        self._allocated_to = target

    def allocate_ahead(self, begin: int, end: int) -> None:
        """`allocate` for the one other thread that prepares the file piece by piece; releases the GIL."""
        fileutil.allocate(self._fd, begin, end - begin, self.path)
        if begin != self._ahead_to:
            self._ahead_from = self._ahead_to = end  # Nothing is promised while the two do not belong together.
            self._ahead_from = begin
        self._ahead_to = end

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._fd < 0

    def find(self, needle: bytes, begin: int, end: int) -> int:
        """The first position of `needle` within begin..end, holes skipped; -1 if it is not there."""
        for start, stop in fileutil.data_ranges(self._fd, begin, end):
            # A needle may begin in one range and end in the next, or begin before a range that starts with its tail.
            at = self._mapping.find(needle, max(begin, start - len(needle)), min(end, stop + len(needle)))
            if at >= 0:
                return at
        return -1

    def last_data(self, begin: int, end: int) -> int:
        """One past the last byte within begin..end that is not zero, `begin` if all are."""
        return fileutil.last_data(self._fd, begin, end)

    def rewrite(self, begin: int, end: int) -> None:
        """Make the pages of begin..end that have blocks count as changed."""
        for start, stop in fileutil.data_ranges(self._fd, begin, end):
            for at in (*range(start, stop, mmap.PAGESIZE), stop - 1):
                self.view[at] = self.view[at]

    def sync(self) -> None:
        """Wait until what was written before the call is on disk; releases the GIL. StoreFailed if it may not be."""
        fileutil.fdatasync(self._fd, self.path)

    def close(self) -> None:
        """Let go of the file; live views stay valid and keep the memory mapped. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            # The mapping goes with its last reference, which a lease may hold: it is never closed by hand.
            del self.view, self._mapping
