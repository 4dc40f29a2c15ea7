"""Whether the disk has done all that it was asked to: shared by the parts of one store.

After a failed fsync nobody knows what is on disk, while the memory of the machine shows what should be. So the store
refuses all further writes, and the next opening is told to trust memory no more than after a loss of power: the
marker file, made when the store was opened, is gone then (removing a file needs no room, writing one might).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from raymq.storage import fileutil
from raymq.storage.errors import StoreError, StoreFailed


class Health:
    """Any thread."""

    def __init__(self, marker: Path) -> None:
        """Good, until `fail`; whether the last owner's disk was so is `was_good`."""
        self._marker = marker
        self._failure: BaseException | None = None
        #: Whether nothing has failed since the store was opened.
        self.good = True
        self.was_good = marker.exists()

    def certify(self) -> None:
        """What is on disk is known again. StoreFull, StoreFailed as `fileutil.replace`."""
        fileutil.replace(self._marker, b"")

    def check(self) -> None:
        """StoreFailed after a failure."""
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    def fail(self, error: BaseException) -> None:
        """Refuse writes from now on, because of `error` (the first one is kept)."""
        if self._failure is None:
            self._failure = error
            self.good = False
            with contextlib.suppress(StoreError):
                fileutil.remove(self._marker)
