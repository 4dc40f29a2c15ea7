"""A disk whose commit log flushes hang or fail until a test releases them."""

from __future__ import annotations

import errno
import os
import threading

from raymq.storage.files.file_calls import FileCalls


class HangingDisk(FileCalls):
    """Real calls, except for the flushes of log files. Thread-safe."""

    def __init__(self) -> None:
        self._may_go = threading.Event()
        self._may_go.set()
        self.broken = False
        #: The number of flushes that have begun since `hang`.
        self.hanging = 0

    def hang(self) -> None:
        """Let flushes that begin from now on wait for `release`."""
        self.hanging = 0
        self._may_go.clear()

    def release(self) -> None:
        self._may_go.set()

    def fdatasync(self, fd: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.hanging += 1
            self._may_go.wait()
            if self.broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)
