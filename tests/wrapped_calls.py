"""Forward file calls, so that a test observes or changes some of them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from raymq.storage.files.file_calls import FileCalls


class WrappedCalls(FileCalls):
    """Calls that are forwarded to `real`; subclasses override those that they observe or change."""

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
