"""Reserve a little disk space in a file, and release it on a full disk.

A store whose disk is full has to be opened before retention can make room, and opening writes files: the directory's
owner, a checkpoint, and the entries that recovery adds to queues and index. A broker around the store also writes
before it serves: its identity, timers, producers, settings. The code that opens a store makes the reserve
`releasable_for` as long as that takes.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.enospc_fallback import ENOSPC_FALLBACK

DISK_RESERVE_BYTES: Final = 4 << 20


class DiskReserve:
    """The reserved space of one store, or of one small file. One thread."""

    def __init__(self, path: Path, size: int = DISK_RESERVE_BYTES) -> None:
        self._path = path
        self._size = size

    @property
    def exists(self) -> bool:
        """Return True if the space is reserved now."""
        return self._path.exists()

    def make(self) -> None:
        """Reserve the space; do nothing if the disk has no room."""
        if self.exists:
            return
        successor = fileutil.temp_path_of(self._path)  # a crash in between must not leave an incomplete reserve file
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
        """Release the space; return False if there was none."""
        if not self.exists:
            return False
        with contextlib.suppress(StoreError):
            fileutil.remove(self._path)
        return not self.exists

    def releasable_for(self, root: Path) -> AbstractContextManager[None]:
        """Let this thread's writes below `root` use the reserved space when the disk is full.

        That holds within the returned context.
        """
        return ENOSPC_FALLBACK.releasable_for(root, self.release)
