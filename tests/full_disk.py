"""Nearly full disks for stores: one that counts bytes, and a small file system."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import FileCalls
from raymq.storage.log.retention import DiskUsage


class FullDisk(FileCalls):
    """Real calls on a disk with `free_bytes` left, counted in blocks."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes

    def _take(self, fd: int, grow: int) -> None:
        if grow > self.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free_bytes -= grow

    def write(self, fd: int, content: bytes | memoryview) -> int:
        self._take(fd, max(4096, len(content)))
        return super().write(fd, content)

    def truncate(self, fd: int, size: int) -> None:
        before = os.fstat(fd).st_blocks
        super().truncate(fd, size)
        self.free_bytes += (before - os.fstat(fd).st_blocks) * 512

    def allocate(self, fd: int, start: int, length: int) -> None:
        before = os.fstat(fd).st_blocks
        if before * 512 < start + length:
            self._take(fd, length)
        super().allocate(fd, start, length)

    def rename(self, source: Path, target: Path) -> None:
        freed = os.stat(target).st_blocks * 512 if target.is_file() else 0
        super().rename(source, target)
        self.free_bytes += freed

    def unlink(self, path: Path) -> None:
        freed = os.stat(path).st_blocks * 512
        super().unlink(path)
        self.free_bytes += freed


@contextlib.contextmanager
def small_file_system(path: Path, size: str) -> Iterator[None]:
    """Mount a small file system at `path`; skip the test if mounting is not allowed."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> Path:
    """Write a file that takes all free space of a file system, and return it."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert DiskUsage.of(disk).free == 0
    return filler
