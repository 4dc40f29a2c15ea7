"""A file that takes a little of the disk, to be given back when nothing else is left of it.

A store whose disk is full has to be opened before retention can make room, and opening writes: who has the directory,
a checkpoint, what recovery adds to queues and index. So does a broker around it before it serves: who it is, timers,
producers, settings. Whoever opens has the ballast `at_hand` for as long as that takes.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.room import ROOM

BALLAST_BYTES: Final = 4 << 20


class Ballast:
    """One store's, or one small file's. One thread."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self._path = path
        self._size = size

    @property
    def is_there(self) -> bool:
        """Whether it has its room now."""
        return self._path.exists()

    def make(self) -> None:
        """Take the room, if there is any; quietly nothing where there is none."""
        if self.is_there:
            return
        successor = fileutil.successor_of(self._path)  # who dies in between leaves nothing that looks like a ballast
        try:
            fileutil.make_folder(self._path.parent)
            fd = fileutil.create_sparse(successor, self._size)
            try:
                fileutil.allocate(fd, 0, self._size, successor)
            finally:
                fileutil.close(fd)
            fileutil.rename(successor, self._path)
        except StoreError:
            with contextlib.suppress(StoreError):
                fileutil.remove(successor)

    def release(self) -> bool:
        """Give the room back; whether there was any."""
        if not self.is_there:
            return False
        with contextlib.suppress(StoreError):
            fileutil.remove(self._path)
        return not self.is_there

    def at_hand(self, root: Path) -> AbstractContextManager[None]:
        """Within it whatever this thread writes below `root` and has no room for is written with this one's."""
        return ROOM.at_hand(root, self.release)
