"""A fake disk that fails on demand, for tests of the store and of the layers above.

    with replaced(FaultyCalls("fdatasync", 3, errno.EIO)):
        ...                        # the third fdatasync raises EIO, the others work

A failing fsync behaves as a real one may: the call does nothing, and later ones succeed again.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from raymq.storage.files.file_calls import FileCalls


class UnsyncedCalls(FileCalls):
    """Real calls without syncs: written data survive the process, but perhaps not the machine."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass


class UnsyncedBelow(UnsyncedCalls):
    """Calls without syncs for files below `root`; other files use `real`."""

    def __init__(self, root: Path, real: FileCalls) -> None:
        self._root = root
        self._real = real

    def fsync(self, fd: int) -> None:
        if not self._is_below(fd):
            self._real.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        if not self._is_below(fd):
            self._real.fdatasync(fd)

    def _is_below(self, fd: int) -> bool:
        return Path(f"/proc/self/fd/{fd}").resolve().is_relative_to(self._root)


KINDS: Final = (
    "open",
    "scan",
    "duplicate",
    "map",
    "write",
    "truncate",
    "allocate",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "make_folder",
    "remove_folder",
)


class FaultyCalls(FileCalls):
    """Real calls, of which the `nth` of a kind (from 1) fails with `error`. Thread-safe.

    Attributes:
        counts: the number of calls of each kind.
        failed: whether the fault has happened.
    """

    def __init__(
        self, kind: str = "", nth: int = 0, error: int = 0, *, lasting: bool = False, real: FileCalls | None = None
    ) -> None:
        """Set the fault; without arguments calls are only counted.

        Args:
            kind: one of `KINDS`, or "short_write": the nth write takes half of its bytes, and the next one fails with
                `error` unless that is 0.
            lasting: all calls of that kind from the nth on fail.
            real: the calls behind those that do not fail.
        """
        self._real = real or FileCalls()
        self._kind = "write" if kind == "short_write" else kind
        self._short = kind == "short_write"
        self._nth = nth
        self._error = error
        self._lasting = lasting
        self._mutex = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failed = False

    def _count(self, kind: str, subject: object) -> bool:
        """Count a call, raise if it must fail, and return whether it must be short."""
        with self._mutex:
            self.counts[kind] += 1
            number = self.counts[kind]
            if kind != self._kind:
                return False
            if self._short and number == self._nth:
                self.failed = True
                return True
            first = self._nth + self._short
            fails = self._error != 0 and (number >= first if self._lasting else number == first)
            self.failed |= fails
        if fails:
            raise OSError(self._error, os.strerror(self._error), str(subject))
        return False

    def open(self, path: Path, flags: int) -> int:
        self._count("open", path)
        return self._real.open(path, flags)

    def scan(self, folder: Path) -> list[os.DirEntry[str]]:
        self._count("scan", folder)
        return self._real.scan(folder)

    def duplicate(self, fd: int) -> int:
        self._count("duplicate", fd)
        return self._real.duplicate(fd)

    def map(self, fd: int, size: int, flags: int) -> mmap.mmap:
        self._count("map", fd)
        return self._real.map(fd, size, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        short = self._count("write", fd)
        return self._real.write(fd, memoryview(content)[: max(1, len(content) // 2)] if short else content)

    def truncate(self, fd: int, size: int) -> None:
        self._count("truncate", fd)
        self._real.truncate(fd, size)

    def allocate(self, fd: int, start: int, length: int) -> None:
        self._count("allocate", fd)
        self._real.allocate(fd, start, length)

    def fsync(self, fd: int) -> None:
        self._count("fsync", fd)
        self._real.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._count("fdatasync", fd)
        self._real.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._count("rename", source)
        self._real.rename(source, target)

    def unlink(self, path: Path) -> None:
        self._count("unlink", path)
        self._real.unlink(path)

    def make_folder(self, path: Path) -> None:
        self._count("make_folder", path)
        self._real.make_folder(path)

    def remove_folder(self, path: Path) -> None:
        self._count("remove_folder", path)
        self._real.remove_folder(path)
