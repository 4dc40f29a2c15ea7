"""A consistent snapshot of a directory's state for a backup.

It is exact even if no recorder numbers the changes. A replica's snapshot is followed by the changes that were made
while it was read. A backup has no such changes. So while the snapshot is read, each file call that would destroy a byte
of it first saves that byte: when a file loses its path, or is truncated. State files are written at their ends and
replaced, so this seldom costs more than an open file descriptor.

The moment of the snapshot lies between two file calls: calls under way are waited for, and later calls wait while the
existing files are noted, about 20 us for each file.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import StoreBusy, StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.file_calls import FileCalls, WrappedCalls
from raymq.storage.state import recording_file_calls
from raymq.storage.state.state_files import RAYMQ_FOLDER, is_backup_state
from raymq.storage.state.state_snapshot import StateSnapshot, encode_parts, read_part

#: Files that are not state but needed to open a restored store: queue ends and file sizes of the same moment.
POINT_IN_TIME_FILES: Final = (f"{RAYMQ_FOLDER}/state.json", "checkpoint")
#: A file call that takes longer is considered to hang, with its disk.
_WAIT_SECONDS: Final = 5.0
_PIECE_BYTES: Final = 900 << 10
_CHANGING: Final = ("open", "write", "truncate", "rename", "unlink", "make_folder", "remove_folder")


def is_backup_path(path: str) -> bool:
    """Return True if a path below the store directory belongs to a `BackupSnapshot`."""
    return path in POINT_IN_TIME_FILES or is_backup_state(path)


class _CopyOnWriteCalls(WrappedCalls):
    """File calls that save bytes of the snapshot before they are overwritten or lost.

    Changes are made one at a time. Any thread.
    """

    def __init__(self, real: FileCalls, prefix: str, lock: threading.RLock) -> None:
        super().__init__(real)
        self.snapshot: StateSnapshot | None = None
        #: Why the snapshot is incomplete, if it is; the store's own calls do not fail because of that.
        self.failure: Exception | None = None
        self._prefix = prefix
        self._lock = lock

    def _lose(self, path: Path, *, content: bool = False) -> None:
        text = os.path.abspath(path)
        if self.snapshot is not None and text.startswith(self._prefix):
            relative = text[len(self._prefix) :]
            self._try(self.snapshot.preserve_content if content else self.snapshot.preserve, relative)

    def _change_from(self, fd: int, begin: int) -> None:
        """Save an open file's content if it is about to change from `begin` on."""
        if self.snapshot is not None:
            path, size = self.snapshot.inodes.get(os.fstat(fd).st_ino, ("", 0))
            if begin < size:
                self._try(self.snapshot.preserve_content, path)

    def _try(self, preserve: Callable[[str], None], path: str) -> None:
        try:
            preserve(path)
        except (StoreError, OSError) as error:
            self.failure = self.failure or error

    def open(self, path: Path, flags: int) -> int:
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return self.real.open(path, flags)
        with self._lock:
            if flags & os.O_TRUNC:
                self._lose(path, content=True)
            return self.real.open(path, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        with self._lock:
            if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:
                self._change_from(fd, os.lseek(fd, 0, os.SEEK_CUR))
            return self.real.write(fd, content)

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._change_from(fd, size)
            self.real.truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._lose(source)
            self._lose(target)
            self.real.rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._lose(path)
            self.real.unlink(path)

    def make_folder(self, path: Path) -> None:
        with self._lock:
            self.real.make_folder(path)

    def remove_folder(self, path: Path) -> None:
        with self._lock:
            self.real.remove_folder(path)


class BackupSnapshot:
    """The state of a directory at the moment of construction.

    `parts` belongs to any one thread, `close` to any.

    Attributes:
        log_end: the result of the argument `log_end` at that moment.
    """

    def __init__(self, directory: Path, log_end: Callable[[], int]) -> None:
        """Note the existing files; the caller is the thread that appends to the log.

        Args:
            log_end: returns the end of the log. The state refers to no message after it.

        Raises:
            StoreBusy: a change that is under way does not end.
            StoreFailed: the state cannot be read.
        """
        lock = threading.RLock()
        self._closing = threading.Lock()
        self._closed = False

        def watching(real: FileCalls) -> FileCalls:
            self._watching = _CopyOnWriteCalls(real, recording_file_calls.path_prefix(directory), lock)
            return self._watching

        with lock:
            recording_file_calls.insert_calls(watching)
            try:
                _wait_for_calls(self._watching)
                self.log_end = log_end()
                self._of_the_moment = {path: _content(directory / path) for path in POINT_IN_TIME_FILES}
                self._snapshot = StateSnapshot(directory, 0, lock, lambda _: None, is_backup_state)
                self._watching.snapshot = self._snapshot
            except BaseException:
                recording_file_calls.remove_calls(self._watching)
                raise

    @property
    def total_bytes(self) -> int:
        """Return the size of the snapshot in bytes."""
        return self._snapshot.total_bytes + sum(len(content or b"") for content in self._of_the_moment.values())

    def parts(self) -> Iterator[bytes]:
        """Iterate over the snapshot in parts of about 1 MiB for `read_snapshot_part`.

        Raise StoreBusy or StoreFailed if a file cannot be read, or bytes of that moment could not be saved.
        """
        for path, content in self._of_the_moment.items():
            for at in range(0, len(content or b"") or (content is not None), _PIECE_BYTES):
                yield from encode_parts([[path, at, (content or b"")[at : at + _PIECE_BYTES]]])
        yield from self._snapshot.parts()
        if self._watching.failure is not None:
            raise StoreBusy(f"the state of the snapshot could not be kept: {self._watching.failure}")

    def close(self) -> None:
        """Stop saving bytes. May be called again."""
        with self._closing:
            closed, self._closed = self._closed, True
        if not closed:
            recording_file_calls.remove_calls(self._watching)
            self._snapshot.close()


def read_snapshot_part(part: bytes | memoryview) -> list[tuple[str, int | None, bytes]]:
    """Return path, offset and bytes of each entry of a part.

    The offset is None for a folder. Raise StateMismatch if the bytes are no part of a snapshot.
    """
    return read_part(part, is_backup_path)


def _content(path: Path) -> bytes | None:
    try:
        return fileutil.read_whole(path)
    except FileNotFoundError:
        return None


def _wait_for_calls(ours: _CopyOnWriteCalls) -> None:
    """Wait until no other thread is within a call that may change a file.

    Calls that start later wait for the lock. A call that has started is a frame of the interpreter, and all frames can
    be inspected because the inspecting thread holds the GIL. The frame may also belong to the file calls of an earlier
    backup.
    """
    codes = {
        vars(each)[name].__code__
        for each in (_CopyOnWriteCalls, *type(ours.real).__mro__)
        for name in _CHANGING
        if hasattr(vars(each).get(name), "__code__")
    }

    def is_within(frame: Any) -> bool:
        while frame is not None:
            if frame.f_code in codes and frame.f_locals.get("self") is not ours:
                return True
            frame = frame.f_back
        return False

    own, deadline = threading.get_ident(), time.monotonic() + _WAIT_SECONDS
    while any(is_within(frame) for thread, frame in sys._current_frames().items() if thread != own):  # noqa: SLF001 - so named
        if time.monotonic() > deadline:
            raise StoreBusy(f"a change of a file has not ended within {_WAIT_SECONDS:.0f} s: does its disk hang?")
        time.sleep(1e-4)
