"""One file of fixed size, mapped into memory as a whole.

The mapping is closed when its last view is released: `close` drops only the file's own reference, and a lease that
holds a slice keeps the memory mapped. This module neither interprets the bytes nor tracks how far they are written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreBusy, StoreFull
from raymq.storage.files import fileutil, holes
from raymq.storage.files.background_preparer import BackgroundPreparer

_MAP_NORESERVE: Final = 0x4000
#: Flags for a read-only file: writes stay in memory, and no memory is reserved for them.
_PRIVATE: Final = mmap.MAP_PRIVATE | _MAP_NORESERVE


#: madvise values that fault pages in for reading or for writing (Linux 5.14; older kernels refuse them).
POPULATE_READ: Final = 22
POPULATE_WRITE: Final = 23
_MAX_AHEAD_BYTES: Final = 512 << 10
_NEVER: Final = 1 << 63


def _load_madvise() -> Callable[[int, int, int], int]:
    # mmap.madvise would hold the GIL; a call through ctypes does not.
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


_madvise = _load_madvise()


class MappedFile:
    """A mapped file; `start` is the position of its first byte in the file sequence.

    Thread rule: writing and `allocate` belong to the store's writer; `sync` may be called from any thread.
    """

    def __init__(
        self,
        path: Path,
        start: int,
        size: int,
        *,
        writable: bool,
        allocate_step_bytes: int = 0,
        ahead: BackgroundPreparer | None = None,
        reserved: bool = False,
    ) -> None:
        """Map the file at `path`; create it or grow it to `size` if `writable`.

        If not `writable`, nothing reaches the disk: bytes written to `view` stay in memory, and a missing file is all
        zeros in memory.

        Args:
            allocate_step_bytes: how far ahead of a write blocks are allocated; 0 = the whole file.
            ahead: the thread that prepares the pages behind the file's writes; None = no preparation.
            reserved: the file may use reserved descriptors; see `descriptor_reserve`.

        Raises:
            StoreBusy: no descriptor or memory is left for it.
            StoreFull, StoreFailed: it cannot be made or opened.
        """
        self.path = path
        self.start = start
        self.size = size
        #: Set by each access; `MappedFileCache` clears it (second chance).
        self.used = True
        #: Whether `close` was called.
        self.closed = False
        self._step = allocate_step_bytes or size
        self._allocated_from = self._allocated_to = 0
        #: The range that `allocate_ahead` has allocated; one tuple, because two threads read and write it.
        self._prepared = (0, 0)
        self._asked_to = 0
        self._ask_at = 0 if ahead is not None and writable else _NEVER
        self._ahead = ahead
        #: Held while the descriptor is closed, or used in a thread other than the writer's.
        self._descriptor = threading.Lock()
        self._writable = writable
        if writable:
            self._fd = fileutil.create_sparse(path, size, reserved=reserved)
        else:
            self._fd = fileutil.open_to_read(path if path.exists() else Path(os.devnull))
        try:
            present = os.fstat(self._fd).st_size
            if present >= size:
                self._mapping = fileutil.map_file(
                    self._fd, size, mmap.MAP_SHARED if writable else _PRIVATE, path, reserved=reserved
                )
            else:
                # Read-only and shorter than `size`: the missing bytes read as zeros.
                self._mapping = mmap.mmap(-1, size)
                self._mapping[:present] = os.pread(self._fd, present, 0)
        except BaseException:
            os.close(self._fd)
            raise
        self.view = memoryview(self._mapping)

    def allocate(self, begin: int, end: int) -> None:
        """Make sure that bytes begin..end have blocks, so that writing cannot raise SIGBUS.

        Raises:
            StoreFull: the disk has no room; nothing was written.
        """
        if end >= self._ask_at:
            self._request(end)
        if (self._allocated_from <= begin and end <= self._allocated_to) or not self._writable:
            return
        prepared_from, prepared_to = self._prepared
        if prepared_from <= self._allocated_to <= prepared_to and self._allocated_from <= begin:
            self._allocated_to = prepared_to
        elif prepared_from <= begin <= prepared_to:
            self._allocated_from, self._allocated_to = prepared_from, prepared_to
        if self._allocated_from <= begin and end <= self._allocated_to:
            return
        if not self._allocated_from <= begin <= self._allocated_to:
            self._allocated_from = self._allocated_to = begin
        target = min(self.size, -(-end // self._step) * self._step)
        try:
            fileutil.allocate(self._fd, self._allocated_to, target - self._allocated_to, self.path)
        except StoreBusy:
            raise
        except StoreFull:  # allocate only this write's pages: the disk may have room for them
            target = min(self.size, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE)
            fileutil.allocate(self._fd, self._allocated_to, target - self._allocated_to, self.path)
        self._allocated_to = target

    @property
    def ready_to(self) -> int:
        """Return the position up to which blocks are allocated for certain.

        A write behind the last allocation that ends before it needs no work from `allocate`.
        """
        return min(self._allocated_to, self._ask_at) if self._writable else self.size

    def _request(self, end: int) -> None:
        """Request preparation of the pages that the next writes are expected to need.

        The amount is derived from the bytes written since the last request. A file that receives an entry only now and
        then requests nothing: otherwise all its pages would be written to the disk.
        """
        written = end - self._asked_to
        if self._ask_at and self._ahead is not None:
            stop = min(self.size, end + min(_MAX_AHEAD_BYTES, 4 * written))
            if stop > end:
                self._ahead.submit(partial(self._prepare, end, stop))
            written = stop - end
        self._asked_to = end
        self._ask_at = end + max(mmap.PAGESIZE, written // 2) if self._ask_at else end + mmap.PAGESIZE

    def _prepare(self, begin: int, end: int) -> None:
        if end > self._allocated_to:
            self.allocate_ahead(begin, end)
        self.populate(begin, end, POPULATE_WRITE)

    def allocate_ahead(self, begin: int, end: int) -> None:
        """Allocate blocks from the one thread that prepares the file; releases the GIL.

        It does what `allocate` does for the writer, piece by piece.
        """
        with self._descriptor:
            if self._fd < 0:
                return
            fileutil.allocate(self._fd, begin, end - begin, self.path)
        prepared_from, prepared_to = self._prepared
        connected = prepared_from <= begin <= prepared_to
        self._prepared = (prepared_from, max(prepared_to, end)) if connected else (begin, end)

    def populate(self, begin: int, end: int, advice: int) -> None:
        """Fault in the pages of begin..end as `advice` says, without holding the GIL.

        The kernel may refuse it, without an error.
        """
        with self._descriptor:
            if self._fd < 0:
                return
            view = self.view  # Keeps the mapping alive if the file is closed meanwhile.
        begin -= begin % mmap.PAGESIZE
        first = ctypes.c_char.from_buffer(view, begin)
        _madvise(ctypes.addressof(first), end - begin, advice)

    def find(self, needle: bytes, begin: int, end: int) -> int:
        """Return the first position of `needle` within begin..end, skipping holes; -1 if absent."""
        for start, stop in holes.data_ranges(self._fd, begin, end, self.path):
            # The needle may cross the border of two ranges, so each range is searched with a margin on both sides.
            first, until = max(begin, start - len(needle)), min(end, stop + len(needle))
            # CPython before 3.11.5 reads one byte beyond the searched range (gh-105235), which may be unmapped.
            at = self._mapping.find(needle, first, min(until, self.size - 1))
            if at >= 0:
                return at
            last = until - len(needle)
            if until == self.size and last >= first and self._mapping[last:until] == needle:
                return last
        return -1

    def last_data(self, begin: int, end: int) -> int:
        """Return the position after the last nonzero byte within begin..end.

        Return `begin` if all bytes are zero.
        """
        return holes.last_data(self._fd, begin, end, self.path)

    def rewrite(self, begin: int, end: int) -> None:
        """Mark the allocated pages of begin..end as changed."""
        for start, stop in holes.data_ranges(self._fd, begin, end, self.path):
            for at in (*range(start, stop, mmap.PAGESIZE), stop - 1):
                self.view[at] = self.view[at]

    def sync(self) -> None:
        """Wait until all bytes written before the call are on disk; releases the GIL.

        A closed file is opened for the sync, and skipped if it was deleted. Any thread. Raise StoreFailed if the bytes
        may not be on disk, and StoreBusy if nothing was done because no descriptor was left.
        """
        with self._descriptor:
            fd = fileutil.duplicate(self._fd, self.path) if self._fd >= 0 else -1
        if fd < 0:
            sync_path(self.path)
            return
        try:
            fileutil.fdatasync(fd, self.path)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the file; may be called again.

        Live views stay valid and keep the memory mapped.
        """
        with self._descriptor:
            if self._fd < 0:
                return
            os.close(self._fd)
            self._fd = -1
            self.closed = True
            # Never closed explicitly: the mapping ends with its last reference, which a lease may hold.
            del self.view, self._mapping


def sync_path(path: Path) -> None:
    """Sync a file that is not mapped, as `MappedFile.sync` does."""
    try:
        fd = fileutil.open_to_read(path)
    except FileNotFoundError:
        return
    try:
        fileutil.fdatasync(fd, path)
    finally:
        fileutil.close(fd)
