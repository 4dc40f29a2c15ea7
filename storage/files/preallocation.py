"""The thread that prepares a log's files ahead of its writer, so that appending never waits for the file system.

Writing into fresh pages of a file is twenty times slower than writing into pages that are in memory and mapped: the
kernel has to find blocks, to zero a page and to enter it in the page table, 4 KiB at a time, within the writer's own
store instruction and with the GIL held. This thread does that beforehand, for a window in front of the writer and in
small steps: it makes the next file, allocates its blocks and faults its pages in. None of its system calls holds the
GIL. It changes no byte of a file, and whatever it has not done or could not do the writer does itself.

Blocks cost no memory but may cost the file system a wait for the disk, tens of milliseconds: they are allocated as far
ahead as has been written since the start, up to `BLOCKS_BYTES`.
"""

from __future__ import annotations

import mmap
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files.mapped_file import POPULATE_READ, POPULATE_WRITE
from raymq.storage.files.mapped_file_queue import MappedFileQueue
from raymq.storage.files.work_thread import WorkThread, begin

WINDOW_BYTES: Final = 64 << 20
BLOCKS_BYTES: Final = 256 << 20
_STEP_BYTES: Final = 1 << 20
_BLOCKS_STEP_BYTES: Final = 16 << 20
#: Smaller files are prepared by the writer: there is little to gain.
_LEAST_FILE_BYTES: Final = 8 << 20


class Preallocator(WorkThread):
    """Keeps the window behind the writer's position ready; `advance` belongs to the writer, it never waits."""

    def __init__(self, files: MappedFileQueue, *, clean: bool) -> None:
        """Nothing happens before `start`.

        Args:
            clean: map pages only for reading. They stay clean, so that an fdatasync by the writer does not have to
                write zeros to the disk first; the first write to each costs a short fault.
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
        """The log ends at `position` now."""
        self._position = position
        if position >= self._wake_at:
            self._wake_at = position + _STEP_BYTES
            self._work.set()

    def flushed(self, length: int) -> None:
        """So many bytes were brought to disk, and with them whatever was prepared: its pages are clean again.

        A page's first change after that is slow. As much as was flushed is likely to be written next, so that much
        is faulted in anew; more would have the disk write zeros all the time. Any thread.
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
            # Half a window later: a burst shorter than that has the processor and its caches to itself.
            self._wake_at = self._prepared_to - self._window // 2
        except (StoreError, OSError):
            # No room, or a disk that fails: the writer meets it too if it gets so far, and says so.
            self._prepared_to = max(self._prepared_to, self._position + _STEP_BYTES)
            self._allocated_to = max(self._allocated_to, self._position + _BLOCKS_STEP_BYTES)

    def _prepare_again(self) -> None:
        """After a flush; see `flushed`."""
        length, self._cleaned = self._cleaned, 0
        begin = self._position
        end = min(self._prepared_to, begin + length)
        while not self._stopping and begin < end:
            file = self._files.prepare(begin)
            stop = min(end, begin + _STEP_BYTES, file.start + file.size)
            file.populate(begin - file.start, stop - file.start, self._advice)
            begin = stop

    def _allocate_more(self) -> bool:
        """Allocate the next piece's blocks; whether there was one."""
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
        """Fault the next piece's pages in, or skip what the writer has overtaken."""
        begin = max(self._prepared_to, self._position - self._position % mmap.PAGESIZE)
        file = self._files.prepare(begin)
        end = min(file.start + file.size, begin + _STEP_BYTES, self._allocated_to)
        if begin < end:
            file.populate(begin - file.start, end - file.start, self._advice)
            self._prepared_to = end
