"""What makes files safe: fsync, atomic replacement, allocation. Nobody else calls these system functions.

Whatever changes a file goes through `file_calls`. A call that fails is a StoreError that names the file and says what
to do: StoreFull where there is no room and nothing is in doubt, StoreBusy where descriptors or memory have run out,
StoreFailed for all else, and for every fsync.
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
from raymq.storage.files.descriptors import NONE_LEFT, RESERVE
from raymq.storage.files.room import ROOM

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_NOW: Final = (*NONE_LEFT, errno.ENOMEM)
_T = TypeVar("_T")


#: So much of a file is read at once.
_READ_BYTES: Final = 16 << 20


def fdatasync(fd: int, path: Path) -> None:
    """Wait until the file's data are on disk; releases the GIL.

    Raises:
        StoreFailed: they may never get there. The kernel counts the pages as written from then on, so that a second
            call would succeed and mean nothing: only writing them anew helps, which is what opening the store does.
    """
    try:
        file_calls.current.fdatasync(fd)
    except OSError as error:
        raise failed("fdatasync", path, error) from error


def _load_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        function.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int] | None", function)


_sync_file_range = _load_sync_file_range()
_START_WRITING: Final = 2


def start_writing(path: Path) -> None:
    """Have the kernel begin to write a file's changed pages, without waiting; a file that is gone is passed over.

    Who is to sync many files does so with all of them first: their `fdatasync` finds them written, and one commit of
    the file system's journal does for all. It says nothing of whether that has succeeded.
    """
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _sync_file_range is not None:
                _sync_file_range(fd, 0, 0, _START_WRITING)
        finally:
            os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable; StoreFull, StoreFailed: they may not be."""
    with opened_directory(directory) as fd:
        sync_opened_directory(fd, directory)


@contextlib.contextmanager
def opened_directory(directory: Path) -> Iterator[int]:
    """A descriptor for `sync_opened_directory`, for who must not fail for want of one later; raises as `replace`."""
    fd = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_opened_directory(fd: int, directory: Path) -> None:
    """`sync_directory` of one that is open; StoreFailed as `fdatasync`."""
    try:
        file_calls.current.fsync(fd)
    except OSError as error:
        raise failed("fsync", directory, error) from error


def make_folder(path: Path, *, durable: bool = True) -> None:
    """Make a folder and those above it, as far as they are missing.

    Args:
        durable: their names are on disk when it returns.

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
    """A descriptor that writes behind the file's end, wherever that is; StoreFull, StoreFailed as `replace`."""
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)


class _Turn:
    """Who replaces a file; others who want to replace the same one wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_taking_turns: Final = threading.Lock()


def open_to_read(path: Path) -> int:
    """A descriptor to read with, FileNotFoundError if there is no such file; StoreFailed: it could not be opened."""
    try:
        return attempt("open", path, lambda: file_calls.current.open(path, os.O_RDONLY), reserved=True)
    except StoreFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; nothing if there is no such folder.

    Only that it is not there means that: what cannot be listed now may be there all the same.

    Raises:
        StoreBusy, StoreFailed: it cannot be read (now).
    """
    return sorted(_listed(folder), key=lambda entry: entry.name)


def names_in(folder: Path) -> list[str]:
    """`entries_of`, only the names, in no order: of a long folder sorting them would be most of the work."""
    return [entry.name for entry in _listed(folder)]


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return attempt("list", folder, lambda: file_calls.current.scan(folder), reserved=True)
    except StoreFailed as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return []
        raise


def paths_in(folder: Path) -> list[Path]:
    """`entries_of` as paths; raises as that."""
    return [folder / entry.name for entry in entries_of(folder)]


def read_head(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file, as far as there are so many; raises as `open_to_read`."""
    fd = open_to_read(path)
    try:
        return os.pread(fd, count, 0)
    finally:
        os.close(fd)


def read_whole(path: Path) -> bytes:
    """All of a file. Only that it is not there means that: what cannot be read now may be there all the same.

    Raises:
        FileNotFoundError: there is no such file. StoreBusy, StoreFailed: it cannot be read (now).
    """
    fd = open_to_read(path)
    try:
        parts = []
        left = os.fstat(fd).st_size  # memory for what is there, and not for more
        while part := os.read(fd, min(max(left, 0) + 1, _READ_BYTES)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError as error:
        raise _not_done("read", path, error) from error
    finally:
        close(fd)


def replace(path: Path, content: bytes | memoryview) -> None:
    """Write `path` anew so that a crash leaves the old content or the new one, whole, and the new one is durable.

    Any thread: two that replace the same file do so one after the other.

    Raises:
        StoreFull: the disk has no room; the old content stays.
        StoreFailed: the disk fails; the old content stays, or the new one is there and may not outlive the machine.
    """
    with _taking_turns:
        turn = _turns.setdefault(str(path), _Turn())
    with turn.lock:
        close(write_successor(path, content))
        failpoint("replace.before_rename")
        rename(successor_of(path), path)


def write_successor(path: Path, content: bytes | memoryview) -> int:
    """The first half of `replace`: a descriptor, for appending, of a durable file that is to take the place of `path`.

    Raises:
        StoreFull, StoreFailed: it could not be made.
    """
    successor = successor_of(path)
    failpoint("replace.before_write")
    fd = open_file(successor, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        write_all(fd, content, successor)
        failpoint("replace.before_sync")
        try:
            file_calls.current.fsync(fd)
        except OSError as error:
            raise failed("fsync", successor, error) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def give_place(path: Path) -> None:
    """The second half of `replace`, not durable yet: the successor is the file from now on.

    Raises:
        StoreFull, StoreFailed: it is not, the old file stays.
    """
    _rename(successor_of(path), path)


def successor_of(path: Path) -> Path:
    """What `replace` writes before it takes the place of `path`; it stays where a process dies in between."""
    return path.with_name(path.name + ".tmp")


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder and make that durable; StoreFull, StoreFailed as `replace`."""
    with contextlib.ExitStack() as stack:  # Opened first: the rename is not done if there is no descriptor left.
        folders = dict.fromkeys((target.parent, source.parent))
        opened = [(stack.enter_context(opened_directory(folder)), folder) for folder in folders]
        _rename(source, target)
        failpoint("replace.after_rename")
        for fd, folder in opened:
            sync_opened_directory(fd, folder)


def _rename(source: Path, target: Path) -> None:
    _with_room("rename", source, lambda: file_calls.current.rename(source, target))


def move(source: Path, target: Path) -> None:
    """Rename a file or folder, for good once both folders are synced; StoreFull, StoreFailed: not done."""
    _with_room("rename", source, lambda: file_calls.current.rename(source, target))


def unlink(path: Path) -> None:
    """Remove a file, if it is there, for good once its folder is synced; StoreFailed if the disk fails."""
    _remove(path)


def remove(path: Path) -> None:
    """Remove a file, if it is there, and make that durable; StoreFailed if the disk fails."""
    if path.exists():
        _remove(path)
        sync_directory(path.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there, and make that durable; StoreFailed as `remove`."""
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
    """Write all of it; from then on it survives the process. StoreFull, StoreFailed: a part may be written."""
    view = memoryview(content)
    while view:
        try:
            view = view[file_calls.current.write(fd, view) :]
        except OSError as error:
            if not ROOM.gives(error, path):
                raise _not_done("write", path, error) from error


def write_at(path: Path, size: int, at: int, content: bytes | memoryview) -> None:
    """Write into the file at `path`, which is created or grown to `size` bytes as `create_sparse` does.

    It may use a reserved descriptor, which it gives back at once.

    Raises:
        StoreFull, StoreFailed: not written, or a part of it.
    """
    fd = create_sparse(path, size, reserved=True)
    try:
        os.lseek(fd, at, os.SEEK_SET)
        write_all(fd, content, path)
    finally:
        os.close(fd)
        RESERVE.refill()


def truncate(fd: int, size: int, path: Path) -> None:
    """Cut or grow a file; StoreFull, StoreFailed if that could not be done."""
    _with_room("resize", path, lambda: file_calls.current.truncate(fd, size))


def create_sparse(path: Path, size: int, *, reserved: bool = False) -> int:
    """A descriptor of the file at `path`, created or grown to `size` bytes of which none is allocated.

    Args:
        reserved: as in `attempt`.

    Raises:
        StoreFull, StoreFailed: it could not be made.
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
    """Give the bytes from `start` on real blocks, so that writing them through a mapping cannot fail.

    Raises:
        StoreFull: the disk or the quota has no room.
        StoreFailed: the disk fails.
    """
    _with_room(f"allocate {length} bytes of", path, lambda: file_calls.current.allocate(fd, start, length))


def close(fd: int) -> None:
    """Close a descriptor."""
    os.close(fd)


def zero_from(fd: int, start: int, size: int, path: Path) -> None:
    """Drop everything from `start` on; the file keeps `size` bytes, zeros there. It must not be mapped.

    Raises:
        StoreFull, StoreFailed: as `truncate`; the file may be shorter then.
    """
    truncate(fd, start, path)
    truncate(fd, size, path)


def attempt(action: str, path: Path, call: Callable[[], _T], *, reserved: bool) -> _T:
    """What `call`, which takes a descriptor, returns.

    Args:
        reserved: it may have one of those that are held back; see `descriptors`.

    Raises:
        StoreBusy: no descriptor or memory is left. StoreFull, StoreFailed: as any call.
    """
    while True:
        try:
            done = call()
        except OSError as error:
            if reserved and error.errno in NONE_LEFT and RESERVE.give():
                continue
            if ROOM.gives(error, path):
                continue
            raise _not_done(action, path, error) from error
        RESERVE.refill()
        return done


def open_file(path: Path, flags: int, *, reserved: bool = True) -> int:
    """A descriptor; raises as `attempt`."""
    return attempt("open", path, lambda: file_calls.current.open(path, flags), reserved=reserved)


def map_file(fd: int, size: int, flags: int, path: Path, *, reserved: bool = False) -> mmap.mmap:
    """A file's memory; raises as `attempt`."""
    return attempt("map", path, lambda: file_calls.current.map(fd, size, flags), reserved=reserved)


def duplicate(fd: int, path: Path) -> int:
    """Another descriptor of an open file; raises as `attempt`."""
    return attempt("open", path, lambda: file_calls.current.duplicate(fd), reserved=True)


def _with_room(action: str, path: Path, call: Callable[[], None]) -> None:
    """Do `call`, once more where it finds no room and some is given back; StoreFull, StoreFailed: not done."""
    while True:
        try:
            call()
        except FileExistsError:
            raise
        except OSError as error:
            if ROOM.gives(error, path):
                continue
            raise _not_done(action, path, error) from error
        return


def _not_done(action: str, path: Path, error: OSError) -> StoreError:
    """What to raise when a call was refused and nothing is in doubt."""
    if error.errno in _NO_ROOM:
        return StoreFull(f"no room to {action} {path}: {_words(error)}")
    if error.errno in _NOT_NOW:
        return StoreBusy(f"could not {action} {path} now: {_words(error)}")
    return failed(action, path, error)


def failed(action: str, path: Path, error: OSError) -> StoreFailed:
    """What to raise when a call has failed; `action` is what it was to do, as a verb."""
    return StoreFailed(f"could not {action} {path}: {_words(error)}")


def _words(error: OSError) -> str:
    number = error.errno or 0
    return f"{errno.errorcode.get(number, number)} {os.strerror(number)}"
