"""The folder of a bridge: Spark's shuffle files and caches, its logs and settings.

The folder is removed when the bridge closes. If its process was killed, the folder stays, possibly with gigabytes of
data, until this user opens the next bridge on the machine. Each folder has a file lock that ends with its process, so
an abandoned folder is recognized by a free lock, even if another process has the same process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "raymq-spark-"
_LOCK: Final = "lock"


class SessionFolder:
    """A new empty folder; `path` is valid until `close`."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # It gets its name after it is locked, because another process removes a folder whose lock is free.
        begun = self.path / f"{_LOCK}.new"
        self._lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        begun.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove the folder. May be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Remove the folders of this user's bridges whose processes were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Another process removes it, or it is not complete yet.
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
