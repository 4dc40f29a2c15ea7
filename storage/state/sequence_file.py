"""How far the state of a directory has come: the number of its last change, in a file that is mapped into memory.

    <store>/raymq/state_sequence     begun i8 | done i8 | boot id, 36 B | zeros; 64 B

`begun` is written before a change is made, `done` behind it and before anybody is told. So after the death of the
process it is known which changes were made, unless it died within one: then they differ, and nobody can say what is
there. Neither can anybody after the machine went down: other files may be on disk with less or more than that. A
directory whose state is changed by nobody who numbers the changes has no such file (`forget`).
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
from raymq.storage.state.state_files import OURS

_BYTES: Final = 64
_BOOT: Final = slice(16, 52)
#: So many numbers there are for each millisecond.
_A_MS_BITS: Final = 20
#: In the year 2109. A clock that stands later than that gives no larger numbers: 64 bits have no room for them.
_LATEST_MS: Final = (1 << 42) - 1


class SequenceFile:
    """The file of one directory. Belongs to who changes the state; `doubt` is for any thread.

    Attributes:
        done: the number of the last change that was made.
        exact: whether just the changes up to that one are in the files.
        doubtful: whether that was not so at some time since a snapshot came, or since the process began.
    """

    def __init__(self, directory: Path) -> None:
        """Read it; one that is missing or of another form says nothing. StoreFull, StoreFailed."""
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
        self.exact = begun == self.done > 0 and boot != b"" and content[_BOOT].rstrip(b"\0") == boot
        self.doubtful = not self.exact
        if not self.exact:
            self._numbers[0] = -1
        self._mapping[_BOOT] = boot.ljust(36, b"\0")[:36]

    def begin(self, sequence: int) -> None:
        """The change of this number, or those up to it, are about to be made."""
        with self._lock:
            if self.exact:  # else somebody doubts it, from another thread
                self._numbers[0] = sequence

    def finish(self, sequence: int) -> None:
        """They were made."""
        self._numbers[1] = self.done = sequence

    def set(self, sequence: int) -> None:
        """Just the changes up to this one are in the files."""
        with self._lock:
            self._numbers[0] = -1
            self._numbers[1] = self.done = sequence
            self._numbers[0] = sequence
            self.exact = True

    def doubt(self) -> None:
        """Nobody can say what is in the files. Nothing happens once it is closed."""
        with self._lock:
            if not self._closed:
                self._numbers[0] = -1
            self.exact = False
            self.doubtful = True

    def next_of_nobody(self) -> int:
        """A number that nobody ever had, beyond all of them: from it on numbers say something again."""
        drawn = secrets.randbelow(1 << _A_MS_BITS)
        return max(self.done + 1 + drawn, min(wall_ms(), _LATEST_MS) << _A_MS_BITS | drawn)

    def close(self) -> None:
        """Let go of the file. May be called again."""
        with self._lock:
            self._closed = True
            self._numbers.release()
            self._mapping.close()


def path_of(directory: Path) -> Path:
    """Where the file is."""
    return directory / OURS / "state_sequence"


def forget(directory: Path) -> None:
    """The state is about to be changed, and nobody numbers that: no number holds any more. StoreFailed."""
    fileutil.remove(path_of(directory))
