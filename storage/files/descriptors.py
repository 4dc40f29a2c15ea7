"""Descriptors held back for what a store must be able to open: the next files of its log and its index, journals,
checkpoints.

A process that is at its limit of open files, through its connections or others' queues, goes on appending so.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

#: A mapped file takes two, its folder one: the next file of the log, of the index and of a queue; and there may be
#: replacements of settings files under way.
HELD: Final = 16
#: The process or the machine has none left.
NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Any thread."""

    def __init__(self, count: int) -> None:
        """Nothing is held before `fill`."""
        self._count = count
        self._wanted = 0
        self._held: list[int] = []
        self._mutex = threading.Lock()

    def fill(self) -> None:
        """Hold as many as it should from now on, as far as there are any."""
        self._wanted = self._count
        self.refill()

    def refill(self) -> None:
        """Make up for what was given, as far as there are any."""
        if len(self._held) < self._wanted:
            with self._mutex:
                try:
                    while len(self._held) < self._wanted:
                        self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno not in NONE_LEFT:
                        raise

    def give(self) -> bool:
        """Close one, for who needs one now; False if there is none."""
        with self._mutex:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def close(self) -> None:
        """Hold none any more."""
        self._wanted = 0
        while self.give():
            pass


#: This process's.
RESERVE: Final = Reserve(HELD)
