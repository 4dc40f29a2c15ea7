"""All state of a directory at one moment, for a backup: exact, also where nobody numbers the changes.

A replica's snapshot is followed by the changes that were made while it was read. A backup has nobody who makes them. So
as long as it is being read, what would change a byte of it is seen before that is done, and the byte is kept: a file
that loses its path, or is cut. Files of state are written at their ends and replaced, so that is seldom more than an
open descriptor.

The moment is one between two calls: further ones wait while it is noted what there is, about 20 us for each file, and
those that are under way are waited for.
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
from raymq.storage.state import recording
from raymq.storage.state.snapshot import StateSnapshot, packed, read_part
from raymq.storage.state.state_files import OURS, is_state

#: What is not state, but a store of its own may be opened by: the same moment's queues' ends and sizes of files.
OF_THE_MOMENT: Final = (f"{OURS}/state.json", "checkpoint")
#: A call that takes longer hangs with its disk.
_WAIT_SECONDS: Final = 5.0
_PIECE_BYTES: Final = 900 << 10
_CHANGING: Final = ("open", "write", "truncate", "rename", "unlink", "make_folder", "remove_folder")


def is_of_backup(path: str) -> bool:
    """Whether a path below the store directory is of what `FrozenState` has."""
    return path in OF_THE_MOMENT or is_state(path)


class _Watching(WrappedCalls):
    """The calls below, one change at a time; before a byte of the snapshot is lost that is told to it. Any thread."""

    def __init__(self, real: FileCalls, prefix: str, lock: threading.RLock) -> None:
        super().__init__(real)
        self.snapshot: StateSnapshot | None = None
        #: Why the snapshot lacks something: that is its own affair, and no call of the store's fails for it.
        self.failure: Exception | None = None
        self._prefix = prefix
        self._lock = lock

    def _lose(self, path: Path, *, content: bool = False) -> None:
        text = os.path.abspath(path)
        if self.snapshot is not None and text.startswith(self._prefix):
            relative = text[len(self._prefix) :]
            self._try(self.snapshot.keep_content if content else self.snapshot.keep, relative)

    def _change_from(self, fd: int, begin: int) -> None:
        """What an open file holds from there on is about to be something else."""
        if self.snapshot is not None:
            path, size = self.snapshot.inodes.get(os.fstat(fd).st_ino, ("", 0))
            if begin < size:
                self._try(self.snapshot.keep_content, path)

    def _try(self, keep: Callable[[str], None], path: str) -> None:
        try:
            keep(path)
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


class FrozenState:
    """The state of a directory when this was made; `parts` belongs to any one thread, `close` to any.

    Attributes:
        log_end: what `log_end` said at that moment.
    """

    def __init__(self, directory: Path, log_end: Callable[[], int]) -> None:
        """Note what there is, by the thread that appends to the log.

        Args:
            log_end: the end of the log. The state speaks of no message behind it.

        Raises:
            StoreBusy: a change is under way that does not come to its end. StoreFailed: the state cannot be read.
        """
        lock = threading.RLock()
        self._closing = threading.Lock()
        self._closed = False

        def watching(real: FileCalls) -> FileCalls:
            self._watching = _Watching(real, recording.prefix_of(directory), lock)
            return self._watching

        with lock:
            recording.insert(watching)
            try:
                _wait_for_calls(self._watching)
                self.log_end = log_end()
                self._of_the_moment = {path: _content(directory / path) for path in OF_THE_MOMENT}
                self._snapshot = StateSnapshot(directory, 0, lock, lambda _: None)
                self._watching.snapshot = self._snapshot
            except BaseException:
                recording.remove(self._watching)
                raise

    @property
    def total_bytes(self) -> int:
        """How large all of it is."""
        return self._snapshot.total_bytes + sum(len(content or b"") for content in self._of_the_moment.values())

    def parts(self) -> Iterator[bytes]:
        """All of it, in pieces of about 1 MiB for `read_frozen`. StoreBusy, StoreFailed."""
        for path, content in self._of_the_moment.items():
            for at in range(0, len(content or b"") or (content is not None), _PIECE_BYTES):
                yield from packed([[path, at, (content or b"")[at : at + _PIECE_BYTES]]])
        yield from self._snapshot.parts()
        if self._watching.failure is not None:
            raise StoreBusy(f"the state of that moment could not be kept: {self._watching.failure}")

    def close(self) -> None:
        """Keep nothing any more. May be called again."""
        with self._closing:
            closed, self._closed = self._closed, True
        if not closed:
            recording.remove(self._watching)
            self._snapshot.close()


def read_frozen(part: bytes | memoryview) -> list[tuple[str, int | None, bytes]]:
    """Path, offset (None: it is a folder) and bytes of what is in a part; StateMismatch: it is none."""
    return read_part(part, is_of_backup)


def _content(path: Path) -> bytes | None:
    try:
        return fileutil.read_whole(path)
    except FileNotFoundError:
        return None


def _wait_for_calls(ours: _Watching) -> None:
    """Until no other thread is within a call that may change a file: those that come later wait for the lock.

    A call that has begun is a frame of the interpreter, and whoever looks has the interpreter for himself. It may be
    one of those that watched for a backup before this one.
    """
    codes = {
        vars(each)[name].__code__
        for each in (_Watching, *type(ours.real).__mro__)
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
