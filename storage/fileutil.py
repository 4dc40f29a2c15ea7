"""What makes files safe: fsync, atomic replacement, locks, allocation. Nobody else calls these system functions."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreFull, StoreLocked

#: struct flock of a 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_SCAN_BYTES: Final = 1 << 20


def fdatasync(fd: int) -> None:
    """Wait until the file's data are on disk; releases the GIL."""
    os.fdatasync(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, content: bytes) -> None:
    """Write `path` anew so that a crash leaves the old content or the new one, whole, and the new one is durable."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder and make that durable."""
    os.rename(source, target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there, and make that durable."""
    if path.exists():
        path.unlink()
        sync_directory(path.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there, and make that durable."""
    if folder.is_dir():
        shutil.rmtree(folder)
        sync_directory(folder.parent)


def write_all(fd: int, content: bytes) -> None:
    """`os.write` until all is written; from then on it survives the process."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def create_sparse(path: Path, size: int) -> int:
    """A descriptor of the file at `path`, created or grown to `size` bytes of which none is allocated."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)
    return fd


def allocate(fd: int, start: int, length: int) -> None:
    """Give the bytes from `start` on real blocks, so that writing them through a mapping cannot fail.

    Raises:
        StoreFull: the disk or the quota has no room.
    """
    try:
        os.posix_fallocate(fd, start, length)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(f"no room for {length} more bytes: {os.strerror(error.errno)}") from error
        raise


def close(fd: int) -> None:
    """Close a descriptor."""
    os.close(fd)


def zero_from(fd: int, start: int, size: int) -> None:
    """Drop everything from `start` on; the file keeps `size` bytes, zeros there. It must not be mapped."""
    os.ftruncate(fd, start)
    os.ftruncate(fd, size)


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges within start..end that may hold anything but zeros (where the file system knows its holes)."""
    position = start
    while position < end:
        try:
            begin = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        if begin >= end:
            return
        position = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
        yield begin, position


def last_data(fd: int, start: int, end: int) -> int:
    """One past the last byte within start..end that is not zero; `start` if all are zero."""
    last = start
    for begin, stop in data_ranges(fd, start, end):
        for at in range(begin, stop, _SCAN_BYTES):
            content = os.pread(fd, min(_SCAN_BYTES, stop - at), at)
            used = len(content.rstrip(b"\0"))
            if used:
                last = at + used
    return last


class DirectoryLock:
    """Ownership of a store directory until `release` or the death of the process.

    A POSIX record lock on byte 0 of the lock file (what RocketMQ takes) keeps other processes out, `flock` on the
    same open file a second store of this process, to which record locks do not apply.
    """

    CONTENT: Final = b"lock"

    def __init__(self, path: Path, pid_hint: Path) -> None:
        """Take the lock; `pid_hint` is a file in which the holder wrote its process id.

        Raises:
            StoreLocked: somebody has it.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            holder = _holder(self._fd)
            if holder is not None:
                os.close(self._fd)
            # Otherwise the holder may be this very process: closing any descriptor of the file would drop its record
            # lock, so this one is left open.
            raise StoreLocked(path.parent, holder or _read_pid(pid_hint)) from None
        if os.fstat(self._fd).st_size == 0:
            write_all(self._fd, self.CONTENT)

    def release(self) -> None:
        """Give the directory free; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> int | None:
    """The process that holds a record lock in our way; None if it is this one, or not visible here."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else None


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
