"""Record whether a disk operation of a store has failed; shared by the store's parts.

After a failed fsync the content of the disk is unknown, while the machine's memory holds what should be on it. The
store therefore refuses all further writes, and the next opening must trust memory no more than after a loss of power.
The marker file, which is made when the store is opened, is removed to signal that (removing a file needs no room,
writing one might).

If the disk has become read-only, the marker cannot be removed. The failure is therefore also recorded in a file in the
machine's memory. A restart of the machine clears that record, which is not needed any more then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError, StoreFailed
from raymq.storage.files import fileutil

#: The in-memory file system of Linux. Without it only the marker counts.
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the files are empty


class DiskHealth:
    """The failure state of one store's disk. Any thread."""

    def __init__(self, marker: Path) -> None:
        """Begin as healthy; `was_healthy` is the state that the last owner left.

        Raise StoreFailed if that state cannot be read.
        """
        self._marker = marker
        self._failure: BaseException | None = None
        #: False once a disk operation has failed since the store was opened.
        self.is_healthy = True
        #: The failure file in memory; computed while the disk can still be read.
        self._memory = _failure_file(marker)
        self.was_healthy = self._memory is not None and not os.path.lexists(self._memory)

    def certify(self) -> None:
        """Record that the content of the disk is known again.

        Raise StoreFull or StoreFailed as `fileutil.replace` does.
        """
        if self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.unlink(missing_ok=True)
        fileutil.replace(self._marker, b"")
        self._memory = _failure_file(self._marker)

    def check(self) -> None:
        """Raise StoreFailed if a failure was recorded."""
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    def fail(self, error: BaseException) -> None:
        """Refuse writes from now on, because of `error` (the first one is kept)."""
        if self._failure is None:
            self._failure = error
            self.is_healthy = False
            try:
                fileutil.remove(self._marker)
            except (StoreError, OSError):  # a disk that is gone cannot even be read
                if self._memory is not None:
                    with contextlib.suppress(OSError):
                        self._memory.touch(mode=0o600)


def _failure_file(marker: Path) -> Path | None:
    """Return the path of the failure file in memory; None without a marker.

    The path depends on the marker's path and inode, so a copy of the store, or a new store at the same path, has
    another one. Raise StoreFailed if the disk cannot be read.
    """
    try:
        number, path = marker.stat().st_ino, marker.resolve()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise fileutil.io_error("look at", marker, error) from error
    name = hashlib.sha256(f"{path} {number}".encode()).hexdigest()[:32]
    return _MEMORY / f"raymq-{name}-failed"
