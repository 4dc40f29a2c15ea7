"""One file of fixed size, mapped into memory as a whole.

The mapping is closed when the last view of it is gone: `close` drops the file's own reference, a lease that still
holds a slice keeps the memory. Nothing here knows what the bytes mean or how far they are written.
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
from raymq.storage.files.file_work import Ahead

_MAP_NORESERVE: Final = 0x4000
#: Of a file that is only read: what is written stays in memory, and no memory is set aside for that.
_PRIVATE: Final = mmap.MAP_PRIVATE | _MAP_NORESERVE


#: Linux 5.14: fault pages in, for reading or for writing; an older kernel refuses it.
POPULATE_READ: Final = 22
POPULATE_WRITE: Final = 23
_MOST_AHEAD_BYTES: Final = 512 << 10
_NEVER: Final = 1 << 63


def _load_madvise() -> Callable[[int, int, int], int]:
    # mmap.madvise would hold the GIL; a call through ctypes does not.
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


_madvise = _load_madvise()


class MappedFile:
    """A mapped file; `start` is the position of its first byte in the sequence of files it belongs to.

    Thread rule: writing and `allocate` belong to the store's writer, `sync` may be called from any thread.
    """

    def __init__(
        self,
        path: Path,
        start: int,
        size: int,
        *,
        writable: bool,
        allocate_step_bytes: int = 0,
        ahead: Ahead | None = None,
        reserved: bool = False,
    ) -> None:
        """Map `path`, which is created or grown to `size` if `writable`.

        Otherwise nothing reaches the disk: what is written to `view` stays in memory, as does a file that is missing.

        Args:
            allocate_step_bytes: how far ahead of a write blocks are allocated; 0 = the whole file.
            ahead: where the file asks for what lies behind its writes to be prepared; None = nowhere.
            reserved: it may have descriptors that are held back; see `descriptors`.

        Raises:
            StoreBusy: no descriptor or memory is left for it. StoreFull, StoreFailed: it cannot be made or opened.
        """
        self.path = path
        self.start = start
        self.size = size
        #: Set by whoever finds the file, for `OpenFiles`.
        self.used = True
        #: Whether `close` was called.
        self.closed = False
        self._step = allocate_step_bytes or size
        self._allocated_from = self._allocated_to = 0
        #: What `allocate_ahead` has allocated; one value, for it is read and written by different threads.
        self._prepared = (0, 0)
        self._asked_to = 0
        self._ask_at = 0 if ahead is not None and writable else _NEVER
        self._ahead = ahead
        #: Held by whoever closes the descriptor, or uses it in another thread than the writer's.
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
        if end >= self._ask_at:
            self._ask(end)
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
        except StoreFull:  # the last of the disk is enough for what is written now
            target = min(self.size, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE)
            fileutil.allocate(self._fd, self._allocated_to, target - self._allocated_to, self.path)
        self._allocated_to = target

    @property
    def ready_to(self) -> int:
        """Up to where `allocate` would have nothing to do behind what was allocated last: there surely are blocks."""
        return min(self._allocated_to, self._ask_at) if self._writable else self.size

    def _ask(self, end: int) -> None:
        """Have prepared what the next writes need, if they go on like those since it was asked the last time.

        A file that gets an entry now and then asks for nothing: all its pages would be written to the disk.
        """
        written = end - self._asked_to
        if self._ask_at and self._ahead is not None:
            stop = min(self.size, end + min(_MOST_AHEAD_BYTES, 4 * written))
            if stop > end:
                self._ahead.ask(partial(self._prepare, end, stop))
            written = stop - end
        self._asked_to = end
        self._ask_at = end + max(mmap.PAGESIZE, written // 2) if self._ask_at else end + mmap.PAGESIZE

    def _prepare(self, begin: int, end: int) -> None:
        if end > self._allocated_to:
            self.allocate_ahead(begin, end)
        self.populate(begin, end, POPULATE_WRITE)

    def allocate_ahead(self, begin: int, end: int) -> None:
        """`allocate` for the one other thread that prepares the file piece by piece; releases the GIL."""
        with self._descriptor:
            if self._fd < 0:
                return
            fileutil.allocate(self._fd, begin, end - begin, self.path)
        prepared_from, prepared_to = self._prepared
        connected = prepared_from <= begin <= prepared_to
        self._prepared = (prepared_from, max(prepared_to, end)) if connected else (begin, end)

    def populate(self, begin: int, end: int, advice: int) -> None:
        """Fault the pages of begin..end in, as `advice` says, without the GIL; the kernel may refuse it silently."""
        with self._descriptor:
            if self._fd < 0:
                return
            view = self.view  # Keeps the mapping, also when the file is closed meanwhile.
        begin -= begin % mmap.PAGESIZE
        first = ctypes.c_char.from_buffer(view, begin)
        _madvise(ctypes.addressof(first), end - begin, advice)

    def find(self, needle: bytes, begin: int, end: int) -> int:
        """The first position of `needle` within begin..end, holes skipped; -1 if it is not there."""
        for start, stop in holes.data_ranges(self._fd, begin, end, self.path):
            # A needle may begin in one range and end in the next, or begin before a range that starts with its tail.
            first, until = max(begin, start - len(needle)), min(end, stop + len(needle))
            # CPython before 3.11.5 looks at one byte behind what it searches (gh-105235), where nothing may be mapped.
            at = self._mapping.find(needle, first, min(until, self.size - 1))
            if at >= 0:
                return at
            last = until - len(needle)
            if until == self.size and last >= first and self._mapping[last:until] == needle:
                return last
        return -1

    def last_data(self, begin: int, end: int) -> int:
        """One past the last byte within begin..end that is not zero, `begin` if all are."""
        return holes.last_data(self._fd, begin, end, self.path)

    def rewrite(self, begin: int, end: int) -> None:
        """Make the pages of begin..end that have blocks count as changed."""
        for start, stop in holes.data_ranges(self._fd, begin, end, self.path):
            for at in (*range(start, stop, mmap.PAGESIZE), stop - 1):
                self.view[at] = self.view[at]

    def sync(self) -> None:
        """Wait until what was written before the call is on disk; releases the GIL. StoreFailed if it may not be.

        StoreBusy: nothing was done, for want of a descriptor.

        A file that was closed is opened for that, and left alone if it was deleted. Any thread.
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
        """Let go of the file; live views stay valid and keep the memory mapped. May be called again."""
        with self._descriptor:
            if self._fd < 0:
                return
            os.close(self._fd)
            self._fd = -1
            self.closed = True
            # The mapping goes with its last reference, which a lease may hold: it is never closed by hand.
            del self.view, self._mapping


def sync_path(path: Path) -> None:
    """`MappedFile.sync` of a file that is not mapped."""
    try:
        fd = fileutil.open_to_read(path)
    except FileNotFoundError:
        return
    try:
        fileutil.fdatasync(fd, path)
    finally:
        fileutil.close(fd)
