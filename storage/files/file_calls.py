"""Make the system calls that change files, in one replaceable place.

`fileutil` makes all of them through `current`, so that tests can replace them: tests/faulty_calls.py makes a chosen
call fail as a disk would, and a subclass that overrides `fsync` and `fdatasync` observes what is on disk after a loss
of power. Reading bytes and accessing the memory of a mapping cannot be replaced: bytes reach a mapping without a call,
and reach its disk with `fdatasync`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileCalls:
    """The real system calls; each raises OSError as the system call does. Any thread."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file and return its descriptor.

        The descriptor is closed in child programs; new files get mode 0644.
        """
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def scan(self, folder: Path) -> list[os.DirEntry[str]]:
        """Return the entries of a folder; a descriptor is in use during the call."""
        with os.scandir(folder) as entries:
            return list(entries)

    def duplicate(self, fd: int) -> int:
        """Return another descriptor of the same open file."""
        return os.dup(fd)

    def map(self, fd: int, size: int, flags: int) -> mmap.mmap:
        """Return the file's mapped memory, which takes a descriptor of its own."""
        return mmap.mmap(fd, size, flags=flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        """Write bytes and return how many were written, which may be fewer than given."""
        return os.write(fd, content)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file, or grow it with zeros."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, start: int, length: int) -> None:
        """Allocate real blocks for a range of the file."""
        os.posix_fallocate(fd, start, length)

    def fsync(self, fd: int) -> None:
        """Sync a file's data and metadata, or a folder's names, to disk."""
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Sync a file's data to disk, including data written through a mapping."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, replacing an existing target."""
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


#: The calls that `fileutil` makes. Tests replace them with `replaced`.
current = FileCalls()


@contextmanager
def replaced(calls: FileCalls) -> Iterator[None]:
    """Make all stores of this process use `calls` until the `with` block ends."""
    global current  # noqa: PLW0603 - the only place that replaces it
    before, current = current, calls
    try:
        yield
    finally:
        current = before
