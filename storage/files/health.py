"""Whether the disk has done all that it was asked to: shared by the parts of one store.

After a failed fsync nobody knows what is on disk, while the memory of the machine shows what should be. So the store
refuses all further writes, and the next opening is told to trust memory no more than after a loss of power: the
marker file, made when the store was opened, is gone then (removing a file needs no room, writing one might).

A disk that went away and is read-only then does not remove it either. So the machine's memory is told, too: it forgets
what it is told when the machine is started anew, and so does not know more than it has to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError, StoreFailed
from raymq.storage.files import fileutil

#: A file system in memory, as Linux has one. Where there is none, the marker alone is asked.
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the files are empty


class Health:
    """Any thread."""

    def __init__(self, marker: Path) -> None:
        """Good, until `fail`; whether the last owner's disk was so is `was_good`. StoreFailed: nobody can say now."""
        self._marker = marker
        self._failure: BaseException | None = None
        #: Whether nothing has failed since the store was opened.
        self.good = True
        #: Where the machine is told: worked out while the disk still says what there is.
        self._memory = _told(marker)
        self.was_good = self._memory is not None and not os.path.lexists(self._memory)

    def certify(self) -> None:
        """What is on disk is known again. StoreFull, StoreFailed as `fileutil.replace`."""
        if self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.unlink(missing_ok=True)
        fileutil.replace(self._marker, b"")
        self._memory = _told(self._marker)

    def check(self) -> None:
        """StoreFailed after a failure."""
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    def fail(self, error: BaseException) -> None:
        """Refuse writes from now on, because of `error` (the first one is kept)."""
        if self._failure is None:
            self._failure = error
            self.good = False
            try:
                fileutil.remove(self._marker)
            except (StoreError, OSError):  # a disk that is gone does not even say what is there
                if self._memory is not None:
                    with contextlib.suppress(OSError):
                        self._memory.touch(mode=0o600)


def _told(marker: Path) -> Path | None:
    """Where the machine is told of it. A copy of the store, or what is made in its place, has another marker.

    None: there is no marker. StoreFailed: the disk does not say.
    """
    try:
        number, path = marker.stat().st_ino, marker.resolve()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise fileutil.failed("look at", marker, error) from error
    name = hashlib.sha256(f"{path} {number}".encode()).hexdigest()[:32]
    return _MEMORY / f"raymq-{name}-failed"
