"""Who owns a store directory: one process, and one store of it."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import ClassVar, Final

from raymq.storage.errors import StoreLocked
from raymq.storage.files import fileutil

#: struct flock of a 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


class DirectoryLock:
    """Ownership of a store directory until `release` or the death of the process.

    A POSIX record lock on byte 0 of the lock file (what RocketMQ takes) keeps other processes out, and so does `flock`
    on the same open file. Neither may be tried by the owner's own process, where the former does not apply and is lost
    as soon as any descriptor of the file is closed: there the set of files that are held decides.
    """

    CONTENT: Final = b"lock"
    _held: ClassVar[dict[tuple[int, int], int]] = {}
    _taking: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path, pid_hint: Path) -> None:
        """Take the lock; `pid_hint` is a file in which the holder wrote its process id.

        Raises:
            StoreLocked: somebody has it.
            StoreFull, StoreFailed: the lock file could not be made.
        """
        self._fd = -1
        with self._taking:
            if path.exists() and self._held.get(_identity(os.stat(path))) == os.getpid():
                raise StoreLocked(path.parent, os.getpid())
            fd = fileutil.open_file(path, os.O_RDWR | os.O_CREAT)
            try:
                self._take(fd, path, pid_hint)
                if os.fstat(fd).st_size == 0:
                    fileutil.write_all(fd, self.CONTENT, path)
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
            self._identity = _identity(os.fstat(fd))
            self._held[self._identity] = os.getpid()

    @staticmethod
    def _take(fd: int, path: Path, pid_hint: Path) -> None:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise fileutil.failed("lock", path, error) from error
            raise StoreLocked(path.parent, _holder(fd) or _read_pid(pid_hint)) from None

    @classmethod
    def holder(cls, path: Path) -> int | None:
        """The process that has the lock file's lock: None if nobody has, 0 if it is not visible from here.

        Looking takes nothing and changes nothing. StoreBusy, StoreFailed: it cannot be looked at.
        """
        with cls._taking:  # closing a descriptor of the file would give a lock of this process's own free
            try:
                if cls._held.get(_identity(os.stat(path))) == os.getpid():
                    return os.getpid()
                fd = fileutil.open_to_read(path)
            except FileNotFoundError:
                return None
            try:
                return _asked(fd)
            finally:
                fileutil.close(fd)

    def release(self) -> None:
        """Give the directory free; may be called again."""
        with self._taking:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._held.pop(self._identity, None)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(fd: int) -> int | None:
    """The process that holds a record lock in our way; None if it is this one, or not visible here."""
    return _asked(fd) or None


def _asked(fd: int) -> int | None:
    """The process that holds a record lock in our way; None: there is none, 0: one that is not visible here."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, int(pid))


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
