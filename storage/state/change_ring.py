"""The newest changes of state, in memory: what a replica lacks that is not far behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from raymq.storage.errors import InvalidInput
from raymq.storage.state.changes import StateChange

#: So many bytes of changes are kept.
RING_BYTES: Final = 64 << 20
#: So many where a replica needs them (`hold`).
HELD_BYTES: Final = 512 << 20
#: What a change takes besides its payload, in bytes, about.
_OBJECT_BYTES: Final = 200
#: `after` returns so many at once.
MOST_AT_ONCE: Final = 1024


class ChangeRing:
    """Changes that follow each other, the oldest of which go. Any thread.

    Attributes:
        folded: changes up to this number are in the files alone.
        last: the number of the newest one.
    """

    def __init__(self, folded: int = 0, most_bytes: int = RING_BYTES, most_held: int = HELD_BYTES) -> None:
        self.folded = self.last = folded
        self._most_bytes, self._most_held = most_bytes, most_held
        self._changes: list[StateChange] = []
        #: Where `_changes` begins: what is before it goes with many others at once.
        self._first = 0
        self._bytes = 0
        self._held: int | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._changes) - self._first

    def add(self, change: StateChange) -> None:
        """The next one."""
        with self._lock:
            self._changes.append(change)
            self.last = change.sequence
            self._bytes += len(change.payload) + _OBJECT_BYTES
            if self._bytes > self._most_bytes:
                self._drop()

    def after(self, sequence: int) -> Sequence[StateChange]:
        """Those behind a number, at most 1,024 of them; InvalidInput: some of them are folded."""
        with self._lock:
            if sequence < self.folded:
                raise InvalidInput("sequence", f"from {self.folded} on, before that all is folded", sequence)
            first = self._first + sequence - self.folded
            return self._changes[first : first + MOST_AT_ONCE]

    def hold(self, sequence: int | None) -> None:
        """Fold nothing behind this number, unless that takes very much memory; None: nobody needs any."""
        with self._lock:
            self._held = sequence
            if self._bytes > self._most_bytes:
                self._drop()

    def begin_anew(self, sequence: int) -> None:
        """All up to this number is folded, and there is nothing behind it."""
        with self._lock:
            self.folded = self.last = sequence
            self._changes, self._first, self._bytes = [], 0, 0

    def _drop(self) -> None:
        while self._bytes > self._most_bytes and self._first < len(self._changes):
            if self._held is not None and self.folded >= self._held and self._bytes <= self._most_held:
                return
            self._bytes -= len(self._changes[self._first].payload) + _OBJECT_BYTES
            self._first += 1
            self.folded += 1
        if 2 * self._first >= len(self._changes):
            del self._changes[: self._first]
            self._first = 0
