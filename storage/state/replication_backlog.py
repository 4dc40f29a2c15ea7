"""The newest state changes in memory, for replicas that lag only a little."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from raymq.storage.errors import InvalidInput
from raymq.storage.state.state_changes import StateChange

#: How many bytes of changes are kept.
BACKLOG_BYTES: Final = 64 << 20
#: How many bytes are kept while a replica needs them (`retain`).
MAX_HELD_BYTES: Final = 512 << 20
#: About how many bytes of memory a change takes besides its payload.
_OBJECT_BYTES: Final = 200
#: How many changes `after` returns at most.
MAX_CHANGES: Final = 1024


class ReplicationBacklog:
    """Consecutive changes; the oldest are dropped when the limit is exceeded. Any thread.

    Attributes:
        folded: changes up to this number are only in the files, not in memory.
        last: the number of the newest change.
    """

    def __init__(self, folded: int = 0, most_bytes: int = BACKLOG_BYTES, most_held: int = MAX_HELD_BYTES) -> None:
        self.folded = self.last = folded
        self._most_bytes, self._most_held = most_bytes, most_held
        self._changes: list[StateChange] = []
        #: The index of the first valid entry of `_changes`; dropped entries before it are removed many at once.
        self._first = 0
        self._bytes = 0
        self._held: int | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._changes) - self._first

    def add(self, change: StateChange) -> None:
        """Append the next change."""
        with self._lock:
            self._changes.append(change)
            self.last = change.sequence
            self._bytes += len(change.payload) + _OBJECT_BYTES
            if self._bytes > self._most_bytes:
                self._drop()

    def after(self, sequence: int) -> Sequence[StateChange]:
        """Return the changes after a number, at most 1,024 of them.

        Raise InvalidInput if some of them were dropped from memory.
        """
        with self._lock:
            if sequence < self.folded:
                raise InvalidInput("sequence", f"at least {self.folded}: earlier changes were dropped", sequence)
            first = self._first + sequence - self.folded
            return self._changes[first : first + MAX_CHANGES]

    def retain(self, sequence: int | None) -> None:
        """Keep all changes after this number in memory, up to a higher limit.

        With None no change is needed by a replica.
        """
        with self._lock:
            self._held = sequence
            if self._bytes > self._most_bytes:
                self._drop()

    def reset(self, sequence: int) -> None:
        """Drop all changes, and continue after this number."""
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
