"""The number of a directory's last state change, in a memory-mapped file.

    <store>/raymq/state_sequence     begun i8 | done i8 | boot id, 36 B | zeros; 64 B

`begun` is written before a change is made, `done` after it and before the change is reported to anyone. So after a
crash of the process it is known which changes were made, unless it crashed within a change: then the two numbers
differ, and the content of the files is unknown. It is also unknown after a crash of the machine, because other files
may be on disk with fewer or more changes. A directory whose changes are not numbered has no such file
(`remove_sequence_file`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import threading
from pathlib import Path
from typing import Final

from raymq.storage.clock import boot_id, wall_ms
from raymq.storage.files import fileutil
from raymq.storage.state.state_files import RAYMQ_FOLDER

_BYTES: Final = 64
_BOOT: Final = slice(16, 52)
#: The binary logarithm of how many numbers there are for each millisecond.
_A_MS_BITS: Final = 20
#: A time in the year 2109. Later clock times give no larger numbers, because 64 bits have no room for them.
_LATEST_MS: Final = (1 << 42) - 1


class SequenceFile:
    """The sequence file of one directory.

    It belongs to the thread that changes the state; any thread may call `invalidate`.

    Attributes:
        done: the number of the last change that was made.
        is_exact: whether exactly the changes up to `done` are in the files.
        is_stale: whether `is_exact` was False at some time since a snapshot was loaded, or since the process started.
    """

    def __init__(self, directory: Path) -> None:
        """Read the file; a missing or malformed one is replaced by one without a number.

        Raise StoreFull or StoreFailed if that fails.
        """
        self.path = path_of(directory)
        self._lock = threading.Lock()
        self._closed = False
        fileutil.make_folder(self.path.parent)
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = fileutil.read_whole(self.path)
        if len(content) != _BYTES:
            content = bytes(_BYTES)
            fileutil.replace(self.path, content)
        fd = fileutil.open_file(self.path, os.O_RDWR)
        try:
            self._mapping = fileutil.map_file(fd, _BYTES, mmap.MAP_SHARED, self.path)
        finally:
            fileutil.close(fd)
        self._numbers = memoryview(self._mapping).cast("q")
        begun, self.done = self._numbers[0], max(self._numbers[1], 0)
        boot = boot_id().encode()
        self.is_exact = begun == self.done > 0 and boot != b"" and content[_BOOT].rstrip(b"\0") == boot
        self.is_stale = not self.is_exact
        if not self.is_exact:
            self._numbers[0] = -1
        self._mapping[_BOOT] = boot.ljust(36, b"\0")[:36]

    def begin(self, sequence: int) -> None:
        """Record that the changes up to this number are about to be made."""
        with self._lock:
            if self.is_exact:  # else another thread has called `invalidate`
                self._numbers[0] = sequence

    def finish(self, sequence: int) -> None:
        """Record that the changes up to this number were made."""
        self._numbers[1] = self.done = sequence

    def set(self, sequence: int) -> None:
        """Record that exactly the changes up to this number are in the files."""
        with self._lock:
            self._numbers[0] = -1
            self._numbers[1] = self.done = sequence
            self._numbers[0] = sequence
            self.is_exact = True

    def invalidate(self) -> None:
        """Record that the content of the files is unknown.

        After `close` the file is not changed.
        """
        with self._lock:
            if not self._closed:
                self._numbers[0] = -1
            self.is_exact = False
            self.is_stale = True

    def next_unused(self) -> int:
        """Return a number above all numbers ever used; numbering can restart there."""
        drawn = secrets.randbelow(1 << _A_MS_BITS)
        return max(self.done + 1 + drawn, min(wall_ms(), _LATEST_MS) << _A_MS_BITS | drawn)

    def close(self) -> None:
        """Release the file. May be called again."""
        with self._lock:
            self._closed = True
            self._numbers.release()
            self._mapping.close()


def path_of(directory: Path) -> Path:
    """Return the path of the sequence file."""
    return directory / RAYMQ_FOLDER / "state_sequence"


def remove_sequence_file(directory: Path) -> None:
    """Remove the file, because unnumbered changes follow. Raise StoreFailed if that fails."""
    fileutil.remove(path_of(directory))
