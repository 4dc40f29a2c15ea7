"""A file that takes a little of the disk, to be given back when nothing else is left of it.

A store whose disk is full has to be opened before retention can make room, and opening writes: who has the directory,
a checkpoint, what recovery adds to queues and index.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil

BALLAST_BYTES: Final = 4 << 20


class Ballast:
    """One store's. One thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Whether it was there when last looked.
        self.is_there = path.exists()

    def make(self) -> None:
        """Take the room, if there is any; quietly nothing where there is none."""
        if self.is_there:
            return
        with contextlib.suppress(StoreError):
            fileutil.make_folder(self._path.parent)
            fd = fileutil.create_sparse(self._path, BALLAST_BYTES)
            try:
                fileutil.allocate(fd, 0, BALLAST_BYTES, self._path)
                self.is_there = True
            finally:
                fileutil.close(fd)
        if not self.is_there:
            with contextlib.suppress(StoreError):
                fileutil.remove(self._path)

    def release(self) -> bool:
        """Give the room back; whether there was any."""
        if not self._path.exists():
            return False
        with contextlib.suppress(StoreError):
            fileutil.remove(self._path)
        self.is_there = self._path.exists()
        return not self.is_there
