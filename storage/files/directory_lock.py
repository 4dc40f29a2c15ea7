"""Lock a store directory: one process owns it, with one store."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import struct
import threading
from pathlib import Path
from typing import ClassVar, Final

from raymq.storage.errors import StoreLocked
from raymq.storage.files import fileutil

_log = logging.getLogger(__name__)
#: struct flock of a 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
#: File systems of one machine. A lock on any other file system proves nothing about other machines.
_LOCAL: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


class DirectoryLock:
    """Ownership of a store directory until `release` or the end of the process.

    A POSIX record lock on byte 0 of the lock file (what RocketMQ takes) keeps other processes out, and so does `flock`
    on the same open file. The owning process itself must try neither: a record lock does not exclude its own process,
    and is lost as soon as any descriptor of the file is closed. Within the process, the set of held lock files decides.
    """

    CONTENT: Final = b"lock"
    _held: ClassVar[dict[tuple[int, int], int]] = {}
    _taking: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path, pid_hint: Path) -> None:
        """Take the lock; `pid_hint` is a file that holds the owner's process id.

        Raises:
            StoreLocked: another store has the lock.
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
                raise fileutil.io_error("lock", path, error) from error
            raise StoreLocked(path.parent, _holder(fd) or _read_pid(pid_hint)) from None

    @classmethod
    def holder(cls, path: Path) -> int | None:
        """Return the id of the process that holds the lock.

        Return None if no process holds it, and 0 if its holder is not visible from here. The call takes no lock and
        changes nothing. Raise StoreBusy or StoreFailed if the lock cannot be examined.
        """
        with cls._taking:  # closing a descriptor of the file would release this process's own lock
            try:
                if cls._held.get(_identity(os.stat(path))) == os.getpid():
                    return os.getpid()
                fd = fileutil.open_to_read(path)
            except FileNotFoundError:
                return None
            try:
                return _requested(fd)
            finally:
                fileutil.close(fd)

    def release(self) -> None:
        """Release the directory; may be called again."""
        with self._taking:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._held.pop(self._identity, None)


class ProcessLock:
    """A `flock` of the directory itself, kept from its first use until the process ends.

    A `DirectoryLock` is released whenever a store is closed, while its process may go on. Only this lock therefore
    proves that the process which held it before has ended. The kernel releases it after the last thread of a killed
    process has ended.

    Attributes:
        place: which lock this is: a digest of the machine's start (boot id) and of the directory's device and inode,
            which no other directory has while a process keeps this one open. A copy or a restored backup of the
            directory, and the directory on another machine, have another place. "" if the file system is not in
            `_LOCAL`, or the kernel does not report one of the values: the lock proves nothing then.
    """

    def __init__(self, directory: Path, pid_hint: Path, boot: str) -> None:
        """Take the lock.

        Args:
            pid_hint: a file that holds the owner's process id.
            boot: the boot id, as returned by `storage.clock.boot_id`.

        Raises:
            StoreLocked: another process, or another lock of this one, has it.
            StoreBusy, StoreFailed: the directory cannot be opened.
        """
        self.place = ""
        self._fd = fileutil.open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.place = _place(self._fd, boot)
        except BlockingIOError:
            self.release()
            raise StoreLocked(directory, _read_pid(pid_hint)) from None
        except OSError as error:  # a network file system may not support locks of directories
            _log.debug("%s is not locked: %s", directory, error)

    def release(self) -> None:
        """Release the lock for other processes; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _place(fd: int, boot: str) -> str:
    status = os.fstat(fd)
    if not boot or _file_system(fd) not in _LOCAL:
        return ""
    return hashlib.sha256(f"{boot} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:16]


def _file_system(fd: int) -> str:
    """Return an open file's file system type, such as "ext4"; "" if unknown."""
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines()
        mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
        return next(line.partition(" - ")[2].split()[0] for line in mounts if line.split(" ", 1)[0] == mount)
    except (OSError, LookupError, StopIteration):
        return ""


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(fd: int) -> int | None:
    """Return the process that holds a conflicting record lock.

    Return None if that is this process, or is not visible here.
    """
    return _requested(fd) or None


def _requested(fd: int) -> int | None:
    """Return the process that holds a conflicting record lock.

    Return None if there is none, and 0 if the process is not visible here.
    """
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    return None if kind == fcntl.F_UNLCK else max(0, int(pid))


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
