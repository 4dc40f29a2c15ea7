"""Prepare a log's files ahead of its writer, in a thread.

Writing into fresh pages of a file is twenty times slower than writing into pages that are in memory and mapped: the
kernel has to find blocks, zero a page and enter it in the page table, 4 KiB at a time, within the writer's store
instruction and with the GIL held. This thread does that beforehand, in small steps, for a window in front of the
writer: it makes the next file, allocates its blocks and faults its pages in. None of its system calls holds the GIL.
The thread changes no byte of a file; the writer does whatever the thread has not done or could not do.

Blocks take no memory, but allocating them may make the file system wait for the disk for tens of milliseconds. The
thread therefore allocates as many bytes ahead as were written since the start, up to `BLOCKS_BYTES`.
"""

from __future__ import annotations

import mmap
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files.mapped_file import POPULATE_READ, POPULATE_WRITE
from raymq.storage.files.mapped_file_queue import MappedFileQueue
from raymq.storage.files.worker_thread import WorkerThread, begin

WINDOW_BYTES: Final = 64 << 20
BLOCKS_BYTES: Final = 256 << 20
_STEP_BYTES: Final = 1 << 20
_BLOCKS_STEP_BYTES: Final = 16 << 20
#: Smaller files are not prepared by the thread: there is little to gain.
_LEAST_FILE_BYTES: Final = 8 << 20


class Preallocator(WorkerThread):
    """The thread that prepares the window behind the writer's position.

    `advance` belongs to the writer and does not block.
    """

    def __init__(self, files: MappedFileQueue, *, clean: bool) -> None:
        """Create the thread without starting it; see `start`.

        Args:
            clean: map pages only for reading. They stay clean, so that an fdatasync by the writer does not have to
                write zeros to the disk first; the first write to each page costs a short fault.
        """
        super().__init__("raymq-allocate")
        self._files = files
        self._advice = POPULATE_READ if clean else POPULATE_WRITE
        self._window = min(WINDOW_BYTES, files.file_bytes)
        self._most_blocks = min(BLOCKS_BYTES, files.file_bytes)
        self._started_at = 0
        self._position = 0
        self._wake_at = 0
        self._allocated_to = 0
        self._prepared_to = 0
        self._cleaned = 0
        self._clean = clean

    def start(self, position: int) -> None:
        """Begin with the window behind `position`, the log's end."""
        if self._files.file_bytes < _LEAST_FILE_BYTES:
            self._wake_at, self._clean = 1 << 63, True
            return
        self._position = self._started_at = position
        self._allocated_to = self._prepared_to = position - position % mmap.PAGESIZE
        self._wake_at = position
        begin(self._thread)
        self.advance(position)

    def advance(self, position: int) -> None:
        """Record `position` as the log's new end."""
        self._position = position
        if position >= self._wake_at:
            self._wake_at = position + _STEP_BYTES
            self._work.set()

    def flushed(self, length: int) -> None:
        """Record that `length` bytes were synced to disk, which made the prepared pages clean.

        The first write to a clean page is slow. About as many bytes as were flushed are likely to be written next, so
        that many are faulted in again; more would make the disk write zeros all the time. Any thread.
        """
        if not self._clean:
            self._cleaned = min(self._window, length)
            self._work.set()

    def _do_work(self) -> None:
        try:
            self._prepare_again()
            while not self._stopping and self._prepared_to < self._position + self._window:
                self._allocate_more()
                self._step()
            while not self._stopping and self._allocate_more():
                pass
            # Wake half a window later, so that a shorter burst of writes does not share the processor and its caches.
            self._wake_at = self._prepared_to - self._window // 2
        except (StoreError, OSError):
            # If the writer gets that far, it gets the same error of the full or failing disk and raises it.
            self._prepared_to = max(self._prepared_to, self._position + _STEP_BYTES)
            self._allocated_to = max(self._allocated_to, self._position + _BLOCKS_STEP_BYTES)

    def _prepare_again(self) -> None:
        """Fault the pages in again after a flush; see `flushed`."""
        length, self._cleaned = self._cleaned, 0
        begin = self._position
        end = min(self._prepared_to, begin + length)
        while not self._stopping and begin < end:
            file = self._files.prepare(begin)
            stop = min(end, begin + _STEP_BYTES, file.start + file.size)
            file.populate(begin - file.start, stop - file.start, self._advice)
            begin = stop

    def _allocate_more(self) -> bool:
        """Allocate the blocks of the next piece; return False if there was none."""
        ahead = max(self._window, min(self._most_blocks, self._position - self._started_at))
        begin = max(self._allocated_to, self._position - self._position % mmap.PAGESIZE)
        if begin >= self._position + ahead:
            return False
        file = self._files.prepare(begin)
        end = min(file.start + file.size, begin + _BLOCKS_STEP_BYTES)
        file.allocate_ahead(begin - file.start, end - file.start)
        self._allocated_to = end
        return True

    def _step(self) -> None:
        """Fault in the pages of the next piece, skipping what the writer has passed."""
        begin = max(self._prepared_to, self._position - self._position % mmap.PAGESIZE)
        file = self._files.prepare(begin)
        end = min(file.start + file.size, begin + _STEP_BYTES, self._allocated_to)
        if begin < end:
            file.populate(begin - file.start, end - file.start, self._advice)
            self._prepared_to = end
