"""A process that dies at its n-th change of a directory's files, while others in the same process live on.

What its death leaves is a copy of the directory that is made at that moment; nothing that is done to the directory
afterwards, as by what cleans up behind the exception, counts.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raymq.storage.files.file_calls import FileCalls


class Killed(BaseException):
    """The process of that directory has died."""


class KillingCalls(FileCalls):
    """Real calls, syncs apart, until one of those in the armed directory is the last one.

    Attributes:
        is_dead: whether it was.
    """

    def __init__(self) -> None:
        self.is_dead = False
        self._directory: Path | None = None
        self._left = 0
        self._thread = threading.current_thread()
        #: No other thread changes anything while the copy is made.
        self._lock = threading.RLock()

    def arm(self, directory: Path, changes: int) -> None:
        """Let the process of `directory` die at so many changes from now, as soon as this thread makes one."""
        self._directory, self._left, self.is_dead = directory, changes, False

    def disarm(self) -> None:
        """Nobody dies any more."""
        self._directory, self.is_dead = None, False

    def take_place(self) -> None:
        """What the death has left is the directory from now on."""
        directory = self._directory
        assert directory is not None
        self.disarm()
        shutil.rmtree(directory)
        _after(directory).rename(directory)

    def _note(self, where: int | Path) -> None:
        if self._directory is None:
            return
        path = Path(os.readlink(f"/proc/self/fd/{where}")) if isinstance(where, int) else where
        if self._directory not in path.parents:
            return
        if not self.is_dead and threading.current_thread() is self._thread:
            self._left -= 1
            if self._left <= 0:
                shutil.copytree(self._directory, _after(self._directory))
                self.is_dead = True
        if self.is_dead:
            raise Killed

    @contextmanager
    def _change(self, where: int | Path) -> Iterator[None]:
        """The process may die before it or behind it."""
        with self._lock:
            self._note(where)
            yield
            self._note(where)

    def open(self, path: Path, flags: int) -> int:
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return super().open(path, flags)
        with self._change(path):
            return super().open(path, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        with self._change(fd):
            return super().write(fd, content)

    def truncate(self, fd: int, size: int) -> None:
        with self._change(fd):
            super().truncate(fd, size)

    def fsync(self, fd: int) -> None:
        self._note(fd)

    def fdatasync(self, fd: int) -> None:
        self._note(fd)

    def rename(self, source: Path, target: Path) -> None:
        with self._change(source):
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._change(path):
            super().unlink(path)

    def make_folder(self, path: Path) -> None:
        with self._change(path):
            super().make_folder(path)


def _after(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.after")
