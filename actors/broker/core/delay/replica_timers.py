"""Keep a replica's timer log, so that its promotion searches little log.

A replica derives the same entries from its own log as its master, except for messages that the master could not
deliver: nothing in the log says so, and a promoted replica tries them again. It has no wheel. So it looks up in the
timer log from which due time on messages wait, which decides which entries may be dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.broker.core.delay.timer_indexer import TimerIndexer
from raymq.storage.store import Store
from raymq.storage.timers.timer_entry import MIN_KEY, SortKey

#: Later than any due time.
_NEVER: Final[SortKey] = (1 << 62, MIN_KEY)
#: How many entries one lookup checks, and how many lookups one checkpoint makes.
_LOOKED_UP: Final = 1 << 14
_LOOKUPS: Final = 4


class ReplicaTimers:
    """The timer log of a replica's store. It belongs to the store's writer."""

    def __init__(self, store: Store, now_ms: Callable[[], int], *, keeps_dropped: bool) -> None:
        """Open the timer log; see `TimerIndexer`."""
        self._store = store
        self._now_ms = now_ms
        self._indexer = TimerIndexer(store, keeps_dropped=keeps_dropped)
        self.log = self._indexer.log
        #: No indexed message before this mark waits.
        self._first: SortKey = (self.log.begin_ms, MIN_KEY)

    def follow(self) -> bool:
        """Index the next part of what was appended; return True if nothing is left.

        One call takes some milliseconds. If StoreFull or StoreFailed is raised, the next call tries again.
        """
        new = self._indexer.next_records()
        if new is not None:
            self._indexer.record(new)
            dues = new.parsed.waits["due_ms"]
            if len(dues):
                self._first = min(self._first, (int(dues.min()), MIN_KEY))
            return False
        if self._first >= _NEVER:  # nothing waits, so the log has no unknown copy
            self.log.log_end = self._store.max_physical_offset
            return True
        return self._indexer.search()

    def checkpoint(self) -> Callable[[], None] | None:
        """Prepare a checkpoint of the timer log; see `TimerLog.checkpoint`. Call it every few seconds."""
        if not self._indexer.bounds()[1]:
            return None
        return self._indexer.checkpoint(self.log.log_end, self._drained_before_ms())

    def close(self) -> None:
        """Close the timer log without a checkpoint, which could take long. Any thread."""
        self.log.close()

    def _drained_before_ms(self) -> int:
        """Return a time before which no indexed message waits."""
        for _ in range(_LOOKUPS):
            if self._first >= _NEVER:
                break
            found, checked = self.log.waiting(self._first, _NEVER[0], _LOOKED_UP)
            # A master lets no message expire that waits: the others ended in a part of the log that was never here.
            found = found[found["physical_offset"] >= self._store.min_physical_offset]
            if len(found):
                self._first = int(found["due_ms"][0]), MIN_KEY
                break
            self._first = checked
        return min(self._now_ms(), self._first[0])
