"""A disk that has so many bytes left, as a store finds it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from raymq.storage.files.file_calls import FileCalls


class FullDisk(FileCalls):
    """Real calls on a disk of so many free bytes: what they take and give back is counted in blocks."""

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
