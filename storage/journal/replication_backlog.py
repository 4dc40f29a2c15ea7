"""The newest events in memory, for replicas that lag only a little."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent

#: How many bytes of events are kept.
BACKLOG_BYTES: Final = 64 << 20
#: How many bytes are kept while a replica needs them (`retain`).
MAX_HELD_BYTES: Final = 512 << 20
#: About how many bytes of memory an event takes besides its payload.
_OBJECT_BYTES: Final = 200
#: How many events `after` returns at most; a replica applies them at once, on its event loop.
MAX_EVENTS: Final = 128


class ReplicationBacklog:
    """Consecutive events; the oldest are dropped when the limit is exceeded. Any thread.

    Attributes:
        dropped: events up to this number are not in memory.
        last: the number of the newest event.
    """

    def __init__(self, dropped: int = 0, most_bytes: int = BACKLOG_BYTES, most_held: int = MAX_HELD_BYTES) -> None:
        self.dropped = self.last = dropped
        self._most_bytes, self._most_held = most_bytes, most_held
        self._events: list[JournalEvent] = []
        #: The index of the first valid entry of `_events`; dropped entries before it are removed many at once.
        self._first = 0
        self._bytes = 0
        self._held: int | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._events) - self._first

    def add(self, event: JournalEvent) -> None:
        """Append the next event."""
        with self._lock:
            self._events.append(event)
            self.last = event.sequence
            self._bytes += len(event.payload) + _OBJECT_BYTES
            if self._bytes > self._most_bytes:
                self._drop()

    def after(self, sequence: int) -> Sequence[JournalEvent]:
        """Return the events after a number, at most 128 of them.

        Raise InvalidInput if some of them were dropped from memory.
        """
        with self._lock:
            if sequence < self.dropped:
                raise InvalidInput("sequence", f"at least {self.dropped}: earlier events were dropped", sequence)
            first = self._first + sequence - self.dropped
            return self._events[first : first + MAX_EVENTS]

    def retain(self, sequence: int | None) -> None:
        """Keep all events after this number in memory, up to a higher limit.

        With None no event is needed by a replica.
        """
        with self._lock:
            self._held = sequence
            if self._bytes > self._most_bytes:
                self._drop()

    def _drop(self) -> None:
        while self._bytes > self._most_bytes and self._first < len(self._events):
            if self._held is not None and self.dropped >= self._held and self._bytes <= self._most_held:
                return
            self._bytes -= len(self._events[self._first].payload) + _OBJECT_BYTES
            self._first += 1
            self.dropped += 1
        if 2 * self._first >= len(self._events):
            del self._events[: self._first]
            self._first = 0
