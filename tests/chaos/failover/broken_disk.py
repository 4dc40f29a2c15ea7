"""A machine's disk for one process; a fault breaks and mends it while the process runs."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Final

from raymq.storage.files.file_calls import FileCalls

MODES: Final = ("fine", "slow", "hang", "fail", "full")


class BrokenDisk(FileCalls):
    """Real calls that behave as `mode` says; for any thread.

    slow: each sync takes `seconds` longer. hang: a sync does not return until the mode changes. fail: a sync raises
    EIO, and its data may not be on disk. full: no file grows.
    """

    def __init__(self) -> None:
        self.mode = "fine"
        self.seconds = 0.0
        self._news = threading.Condition()

    def become(self, mode: str, seconds: float = 0.0) -> None:
        """Set the mode, also for calls that hang."""
        if mode not in MODES:
            raise ValueError(f"{mode} is none of {MODES}")
        with self._news:
            self.mode, self.seconds = mode, seconds
            self._news.notify_all()

    def _wait_for_disk(self) -> None:
        if self.mode == "slow":
            time.sleep(self.seconds)
        elif self.mode == "hang":
            with self._news:
                self._news.wait_for(lambda: self.mode != "hang")
        if self.mode == "fail":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _grow(self) -> None:
        if self.mode == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            self._grow()
        return super().open(path, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        self._grow()
        return super().write(fd, content)

    def allocate(self, fd: int, start: int, length: int) -> None:
        self._grow()
        super().allocate(fd, start, length)

    def make_folder(self, path: Path) -> None:
        self._grow()
        super().make_folder(path)

    def fsync(self, fd: int) -> None:
        self._wait_for_disk()
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._wait_for_disk()
        super().fdatasync(fd)
