"""Simulate the death of a process at its n-th change of a directory's files, while others in this process live on.

At the moment of death the directory is copied. The copy is what the death leaves; later changes of the original, such
as those of cleanup code behind the exception, do not count.
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
    """Real calls without syncs; the armed directory's process dies at a chosen change.

    Attributes:
        is_dead: whether the process has died.
    """

    def __init__(self) -> None:
        self.is_dead = False
        self._directory: Path | None = None
        self._left = 0
        self._thread = threading.current_thread()
        #: No other thread changes a file while the copy is made.
        self._lock = threading.RLock()

    def arm(self, directory: Path, changes: int) -> None:
        """Let the process of `directory` die after so many changes by this thread."""
        self._directory, self._left, self.is_dead = directory, changes, False

    def disarm(self) -> None:
        """End the simulation: no process dies any more."""
        self._directory, self.is_dead = None, False

    def take_place(self) -> None:
        """Replace the directory by the copy that the death left."""
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
        """Let the process die before or after a change."""
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
        with self._lock:
            self._note(fd)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
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
