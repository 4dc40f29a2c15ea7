"""The system calls that change files, behind one seam: `fileutil` makes them through `current`.

This is where a test stands between the store and the disk: tests/faulty_calls.py lets a chosen call fail as a disk
would, and whatever overrides `fsync` and `fdatasync` sees what is on disk after a loss of power. Reading bytes has no
seam, and neither has the memory of a mapping: bytes reach it without a call, and its disk with `fdatasync`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileCalls:
    """The real calls; each raises OSError as the one of the system does. Any thread."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor, closed in child programs; new files get mode 0644."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def scan(self, folder: Path) -> list[os.DirEntry[str]]:
        """What is in a folder; a descriptor is taken meanwhile."""
        with os.scandir(folder) as entries:
            return list(entries)

    def duplicate(self, fd: int) -> int:
        """Another descriptor of the same open file."""
        return os.dup(fd)

    def map(self, fd: int, size: int, flags: int) -> mmap.mmap:
        """The file's memory, which takes a descriptor of its own."""
        return mmap.mmap(fd, size, flags=flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        """How many bytes were written, which may be fewer than there are."""
        return os.write(fd, content)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file, or grow it with zeros."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, start: int, length: int) -> None:
        """Give a range of the file real blocks."""
        os.posix_fallocate(fd, start, length)

    def fsync(self, fd: int) -> None:
        """Bring a file's data and metadata, or a folder's names, to disk."""
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Bring a file's data to disk, those written through a mapping too."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name, in place of what has it."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        os.mkdir(path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)


class WrappedCalls(FileCalls):
    """Calls that `real` makes: for whoever has to see or to change some of them, and overrides those."""

    def __init__(self, real: FileCalls) -> None:
        self.real = real

    def open(self, path: Path, flags: int) -> int:
        return self.real.open(path, flags)

    def scan(self, folder: Path) -> list[os.DirEntry[str]]:
        return self.real.scan(folder)

    def duplicate(self, fd: int) -> int:
        return self.real.duplicate(fd)

    def map(self, fd: int, size: int, flags: int) -> mmap.mmap:
        return self.real.map(fd, size, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        return self.real.write(fd, content)

    def truncate(self, fd: int, size: int) -> None:
        self.real.truncate(fd, size)

    def allocate(self, fd: int, start: int, length: int) -> None:
        self.real.allocate(fd, start, length)

    def fsync(self, fd: int) -> None:
        self.real.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self.real.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self.real.rename(source, target)

    def unlink(self, path: Path) -> None:
        self.real.unlink(path)

    def make_folder(self, path: Path) -> None:
        self.real.make_folder(path)

    def remove_folder(self, path: Path) -> None:
        self.real.remove_folder(path)


#: What `fileutil` calls. Replaced by tests, through `replaced`.
current = FileCalls()


@contextmanager
def replaced(calls: FileCalls) -> Iterator[None]:
    """All stores of this process use `calls` until the end of the `with`."""
    global current  # noqa: PLW0603 - the one seam
    before, current = current, calls
    try:
        yield
    finally:
        current = before
