"""Write files safely: fsync, atomic replacement, allocation.

Only this module calls these system functions, and every change of a file goes through `file_calls`. A failed call
raises a StoreError that names the file and the action: StoreFull if there is no space and the content of the file is
certain, StoreBusy if descriptors or memory are exhausted, StoreFailed for everything else and for every failed fsync.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar, cast
from weakref import WeakValueDictionary

from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import file_calls
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE, EXHAUSTED_ERRNOS
from raymq.storage.files.enospc_fallback import ENOSPC_FALLBACK

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_NOW: Final = (*EXHAUSTED_ERRNOS, errno.ENOMEM)
_T = TypeVar("_T")


#: The most bytes that one read call returns.
_READ_BYTES: Final = 16 << 20


def fdatasync(fd: int, path: Path) -> None:
    """Wait until the file's data are on disk; releases the GIL.

    Raises:
        StoreFailed: the data may never reach the disk. The kernel marks the pages as written even after the failure, so
            a second call would succeed without meaning anything. Only writing the data again helps, and opening the
            store does so.
    """
    try:
        file_calls.current.fdatasync(fd)
    except OSError as error:
        raise io_error("fdatasync", path, error) from error


def _load_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        function.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int] | None", function)


_sync_file_range = _load_sync_file_range()
_START_WRITING: Final = 2


def start_writeback(path: Path) -> None:
    """Ask the kernel to start writing a file's changed pages, without waiting.

    A missing file is skipped. A caller that syncs many files calls this for all of them first: each `fdatasync` then
    finds its pages written, and one commit of the file system's journal serves all files. The call does not report
    whether the writing succeeded.
    """
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _sync_file_range is not None:
                _sync_file_range(fd, 0, 0, _START_WRITING)
        finally:
            os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable.

    Raise StoreFull or StoreFailed if they may not be durable.
    """
    with opened_directory(directory) as fd:
        sync_opened_directory(fd, directory)


@contextlib.contextmanager
def opened_directory(directory: Path) -> Iterator[int]:
    """Yield a descriptor of the directory for `sync_opened_directory`.

    Opening the directory early ensures that a later sync cannot fail for lack of a descriptor. Raise the same errors as
    `replace`.
    """
    fd = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_opened_directory(fd: int, directory: Path) -> None:
    """Make the names in a directory that is already open durable.

    Raise StoreFailed as `fdatasync` does.
    """
    try:
        file_calls.current.fsync(fd)
    except OSError as error:
        raise io_error("fsync", directory, error) from error


def make_folder(path: Path, *, durable: bool = True) -> None:
    """Make a folder and its missing parents.

    Args:
        durable: the names of the new folders are on disk when the call returns.

    Raises:
        StoreFull, StoreFailed: the disk has no room, or fails.
    """
    if path.is_dir():
        return
    make_folder(path.parent, durable=durable)
    with contextlib.suppress(FileExistsError):
        _with_room("make", path, lambda: file_calls.current.make_folder(path))
    if durable:
        sync_directory(path.parent)


def open_for_append(path: Path) -> int:
    """Open a file for appending and return its descriptor.

    Every write goes to the end that the file has at that moment. Raise StoreFull or StoreFailed as `replace` does.
    """
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)


class _Turn:
    """The lock of one path: threads that replace the same file take turns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_taking_turns: Final = threading.Lock()


def open_to_read(path: Path) -> int:
    """Open a file for reading and return its descriptor.

    Raise FileNotFoundError if the file does not exist, and StoreFailed if it cannot be opened.
    """
    try:
        return attempt("open", path, lambda: file_calls.current.open(path, os.O_RDONLY), reserved=True)
    except StoreFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Return a folder's entries sorted by name; empty if the folder does not exist.

    A folder that exists but cannot be listed now raises an error, because it may contain entries.

    Raises:
        StoreBusy, StoreFailed: it cannot be read (now).
    """
    return sorted(_listed(folder), key=lambda entry: entry.name)


def names_in(folder: Path) -> list[str]:
    """Return the names of a folder's entries, unsorted.

    It otherwise works as `entries_of`. For a long folder, sorting would take most of the time.
    """
    return [entry.name for entry in _listed(folder)]


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return attempt("list", folder, lambda: file_calls.current.scan(folder), reserved=True)
    except StoreFailed as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return []
        raise


def paths_in(folder: Path) -> list[Path]:
    """Return the entries of `entries_of` as paths; raise as `entries_of`."""
    return [folder / entry.name for entry in entries_of(folder)]


def read_head(path: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file, fewer if the file is shorter.

    Raise as `open_to_read` does.
    """
    fd = open_to_read(path)
    try:
        return os.pread(fd, count, 0)
    finally:
        os.close(fd)


def read_whole(path: Path) -> bytes:
    """Return the whole content of a file. Raise as `read_from`."""
    return read_from(path, 0)


def read_from(path: Path, begin: int) -> bytes:
    """Return a file's content from byte `begin` on; empty if it is shorter.

    FileNotFoundError is raised only if the file does not exist; a file that cannot be read now may still exist.

    Raises:
        FileNotFoundError: there is no such file.
        StoreBusy, StoreFailed: it cannot be read (now).
    """
    fd = open_to_read(path)
    try:
        parts = []
        remaining = os.fstat(fd).st_size - begin  # allocate memory for the file's size only
        if begin:
            os.lseek(fd, begin, os.SEEK_SET)
        while part := os.read(fd, min(max(remaining, 0) + 1, _READ_BYTES)):
            parts.append(part)
            remaining -= len(part)
        return b"".join(parts)
    except OSError as error:
        raise _not_done("read", path, error) from error
    finally:
        close(fd)


def replace(path: Path, content: bytes | memoryview) -> None:
    """Replace the content of `path` atomically and durably.

    After a crash, the file has either its whole old content or its whole new content. Any thread may call it; threads
    that replace the same file do so one after the other.

    Raises:
        StoreFull: the disk has no room; the old content stays.
        StoreFailed: the disk failed; the file has the old content, or the new content, which a crash of the machine may
            lose.
    """
    with _taking_turns:
        turn = _turns.setdefault(str(path), _Turn())
    with turn.lock:
        close(write_temp_file(path, content))
        failpoint("replace.before_rename")
        rename(temp_path_of(path), path)


def write_temp_file(path: Path, content: bytes | memoryview) -> int:
    """Write a durable temporary file that will replace `path`, and return its descriptor.

    This is the first half of `replace`. The descriptor is open for appending.

    Raises:
        StoreFull, StoreFailed: the file could not be made.
    """
    successor = temp_path_of(path)
    failpoint("replace.before_write")
    fd = open_file(successor, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        write_all(fd, content, successor)
        failpoint("replace.before_sync")
        try:
            file_calls.current.fsync(fd)
        except OSError as error:
            raise io_error("fsync", successor, error) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def temp_path_of(path: Path) -> Path:
    """Return the path of the temporary file that `replace` renames to `path`.

    The temporary file remains if the process crashes before the rename.
    """
    return path.with_name(path.name + ".tmp")


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder durably; raise StoreFull or StoreFailed as `replace` does."""
    with contextlib.ExitStack() as stack:  # Opened first, so that lack of a descriptor prevents the rename.
        folders = dict.fromkeys((target.parent, source.parent))
        opened = [(stack.enter_context(opened_directory(folder)), folder) for folder in folders]
        _rename(source, target)
        failpoint("replace.after_rename")
        for fd, folder in opened:
            sync_opened_directory(fd, folder)


def _rename(source: Path, target: Path) -> None:
    _with_room("rename", source, lambda: file_calls.current.rename(source, target))


def move(source: Path, target: Path) -> None:
    """Rename a file or folder, durable once both folders are synced.

    Raise StoreFull or StoreFailed if the rename was not done.
    """
    _with_room("rename", source, lambda: file_calls.current.rename(source, target))


def unlink(path: Path) -> None:
    """Remove a file if it exists, durable once its folder is synced.

    Raise StoreFailed if the disk fails.
    """
    _remove(path)


def remove(path: Path) -> None:
    """Remove a file durably if it exists; raise StoreFailed if the disk fails."""
    if path.exists():
        _remove(path)
        sync_directory(path.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder and its content durably if it exists.

    Raise StoreFailed as `remove` does.
    """
    if folder.is_dir():
        _remove_all(folder)
        sync_directory(folder.parent)


def _remove_all(folder: Path) -> None:
    for entry in entries_of(folder):
        if entry.is_dir(follow_symlinks=False):
            _remove_all(Path(entry.path))
        else:
            _remove(Path(entry.path))
    _remove(folder)


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            file_calls.current.remove_folder(path)
        else:
            file_calls.current.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _not_done("remove", path, error) from error


def write_all(fd: int, content: bytes | memoryview, path: Path) -> None:
    """Write all of `content`; from then on it survives a crash of the process.

    Raise StoreFull or StoreFailed if that fails; a part may be written then.
    """
    remaining = len(content)
    while remaining:
        try:
            written = file_calls.current.write(fd, content)
        except OSError as error:
            if not ENOSPC_FALLBACK.release_for(error, path):
                raise _not_done("write", path, error) from error
        else:
            remaining -= written
            if remaining:
                content = memoryview(content)[written:]


def write_at(path: Path, size: int, at: int, content: bytes | memoryview) -> None:
    """Write `content` at byte `at` of the file at `path`.

    The file is created, or grown to `size` bytes, as `create_sparse` does. The call may use a reserved descriptor,
    which it returns at once.

    Raises:
        StoreFull, StoreFailed: nothing was written, or only a part.
    """
    fd = create_sparse(path, size, reserved=True)
    try:
        os.lseek(fd, at, os.SEEK_SET)
        write_all(fd, content, path)
    finally:
        os.close(fd)
        DESCRIPTOR_RESERVE.refill()


def truncate(fd: int, size: int, path: Path) -> None:
    """Cut or grow a file; raise StoreFull or StoreFailed if that fails."""
    _with_room("resize", path, lambda: file_calls.current.truncate(fd, size))


def create_sparse(path: Path, size: int, *, reserved: bool = False) -> int:
    """Open the file at `path`, at least `size` bytes long, and return its descriptor.

    A missing file is created and a shorter one is grown, without allocating blocks.

    Args:
        reserved: as in `attempt`.

    Raises:
        StoreFull, StoreFailed: the file could not be made.
    """
    fd = open_file(path, os.O_RDWR | os.O_CREAT, reserved=reserved)
    try:
        if os.fstat(fd).st_size < size:
            truncate(fd, size, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def allocate(fd: int, start: int, length: int, path: Path) -> None:
    """Allocate blocks for `length` bytes from `start` on.

    Writing these bytes through a mapping then cannot fail.

    Raises:
        StoreFull: the disk or the quota has no room.
        StoreFailed: the disk fails.
    """
    _with_room(f"allocate {length} bytes of", path, lambda: file_calls.current.allocate(fd, start, length))


def close(fd: int) -> None:
    """Close a descriptor."""
    os.close(fd)


def zero_from(fd: int, start: int, size: int, path: Path) -> None:
    """Replace all bytes from `start` on with zeros, keeping the file `size` bytes long.

    The file must not be mapped.

    Raises:
        StoreFull, StoreFailed: as `truncate`; the file may be shorter then.
    """
    truncate(fd, start, path)
    truncate(fd, size, path)


def attempt(action: str, path: Path, call: Callable[[], _T], *, reserved: bool) -> _T:
    """Run `call`, which takes a descriptor, and return its result.

    Args:
        reserved: the call may use one of the reserved descriptors; see `descriptor_reserve`.

    Raises:
        StoreBusy: no descriptor or memory is left.
        StoreFull, StoreFailed: as any call.
    """
    while True:
        try:
            done = call()
        except OSError as error:
            if reserved and error.errno in EXHAUSTED_ERRNOS and DESCRIPTOR_RESERVE.release_one():
                continue
            if ENOSPC_FALLBACK.release_for(error, path):
                continue
            raise _not_done(action, path, error) from error
        DESCRIPTOR_RESERVE.refill()
        return done


def open_file(path: Path, flags: int, *, reserved: bool = True) -> int:
    """Open a file and return its descriptor; raise as `attempt`."""
    return attempt("open", path, lambda: file_calls.current.open(path, flags), reserved=reserved)


def map_file(fd: int, size: int, flags: int, path: Path, *, reserved: bool = False) -> mmap.mmap:
    """Map a file and return its memory; raise as `attempt`."""
    return attempt("map", path, lambda: file_calls.current.map(fd, size, flags), reserved=reserved)


def duplicate(fd: int, path: Path) -> int:
    """Return another descriptor of an open file; raise as `attempt`."""
    return attempt("open", path, lambda: file_calls.current.duplicate(fd), reserved=True)


def _with_room(action: str, path: Path, call: Callable[[], None]) -> None:
    """Run `call`, and retry it each time reserved disk space could be released for it.

    Raise StoreFull or StoreFailed if the call was not done.
    """
    while True:
        try:
            call()
        except FileExistsError:
            raise
        except OSError as error:
            if ENOSPC_FALLBACK.release_for(error, path):
                continue
            raise _not_done(action, path, error) from error
        return


def _not_done(action: str, path: Path, error: OSError) -> StoreError:
    """Return the error for a call that was refused and changed nothing."""
    if error.errno in _NO_ROOM:
        return StoreFull(f"no room to {action} {path}: {_words(error)}")
    if error.errno in _NOT_NOW:
        return StoreBusy(f"could not {action} {path} now: {_words(error)}")
    return io_error(action, path, error)


def io_error(action: str, path: Path, error: OSError) -> StoreFailed:
    """Return the StoreFailed error for a failed call; `action` is a verb for it."""
    return StoreFailed(f"could not {action} {path}: {_words(error)}")


def _words(error: OSError) -> str:
    number = error.errno or 0
    return f"{errno.errorcode.get(number, number)} {os.strerror(number)}"
