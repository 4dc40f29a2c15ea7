"""The folder of a bridge: what Spark shuffles and caches, its logs and settings.

It goes with the bridge. Where its process was killed it stays, which may be gigabytes, until this user opens the next
one on the machine: whose a folder is says a lock that ends with its process, whatever number that had.
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
    """Made empty; `path` until `close`."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        begun = self.path / f"{_LOCK}.new"  # under its name when it is locked: who finds it free removes all
        self._lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        begun.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove it; may be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> None:
    """Remove the folders of this user's bridges whose processes were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else does it, or it is not whole yet
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    told = folder.lstat()
    if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.getuid():
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
