"""Reserve descriptors for the files that a store must be able to open.

These are the next files of its log and its index, journals and checkpoints. With the reserve, a process that is at its
limit of open files, because of its connections or of others' queues, can still append.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

#: Enough for the next file of the log, the index and a queue (a mapped file takes two descriptors, its folder one), and
#: for settings files that are being replaced.
RESERVED_DESCRIPTORS: Final = 16
#: The process or the machine has no descriptors left.
EXHAUSTED_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)


class DescriptorReserve:
    """Descriptors that are held open, to be closed when a store needs them. Any thread."""

    def __init__(self, count: int) -> None:
        """Create an empty reserve of `count` descriptors; see `fill`."""
        self._count = count
        self._wanted = 0
        self._held: list[int] = []
        self._mutex = threading.Lock()

    def fill(self) -> None:
        """Hold the full number of descriptors from now on, as far as available."""
        self._wanted = self._count
        self.refill()

    def refill(self) -> None:
        """Replace the descriptors that were released, as far as available."""
        if len(self._held) < self._wanted:
            with self._mutex:
                try:
                    while len(self._held) < self._wanted:
                        self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno not in EXHAUSTED_ERRNOS:
                        raise

    def release_one(self) -> bool:
        """Close one descriptor so that the caller can open another; False if none is held."""
        with self._mutex:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def close(self) -> None:
        """Close all descriptors and hold none any more."""
        self._wanted = 0
        while self.release_one():
            pass


#: The reserve of this process.
DESCRIPTOR_RESERVE: Final = DescriptorReserve(RESERVED_DESCRIPTORS)
