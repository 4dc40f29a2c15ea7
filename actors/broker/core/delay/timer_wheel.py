"""Keep the timers due within the next minute in memory, by due time. No I/O."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raymq.storage.timers.timer_entry import NO_ENTRIES, Entries


class TimerWheel:
    """Entries of the timer log by due time and queue offset.

    Each queue offset occurs at most once.
    """

    def __init__(self) -> None:
        self._set(NO_ENTRIES)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_due_ms(self) -> int | None:
        """Return when the first entry is due, or None if there is none."""
        return int(self._dues[0]) if len(self._dues) else None

    def add(self, entries: Entries) -> None:
        """Add entries; those that are present already are ignored."""
        if not len(entries):
            return
        first, stop = self._range(entries)
        there = self._waiting[first:stop]
        new = entries[~np.isin(entries["queue_offset"], there["queue_offset"])]
        mixed = np.concatenate([there, new])
        order = np.lexsort((mixed["queue_offset"].astype(np.int64), mixed["due_ms"].astype(np.int64)))
        self._set(np.concatenate([self._waiting[:first], mixed[order], self._waiting[stop:]]))

    def due(self, now_ms: int, most: int, most_bytes: int) -> Entries:
        """Return the entries that are due at `now_ms`, earliest first, within both limits.

        At least one is returned if any is due.
        """
        first = self._waiting[:most]
        first = first[first["due_ms"] <= now_ms]
        within = int(np.searchsorted(np.cumsum(first["size"], dtype=np.int64), most_bytes, "right"))
        return first[: max(1, within)]

    def discard(self, entries: Entries) -> None:
        """Remove entries that wait no more, if they are present.

        Most often they are the first ones.
        """
        offsets = entries["queue_offset"]
        if np.array_equal(self._waiting["queue_offset"][: len(offsets)], offsets):
            self._set(self._waiting[len(offsets) :])
        elif len(offsets):
            first, stop = self._range(entries)
            there = self._waiting[first:stop]
            remaining = there[~np.isin(there["queue_offset"], offsets)]
            if len(remaining) < len(there):
                self._set(np.concatenate([self._waiting[:first], remaining, self._waiting[stop:]]))

    def clear(self) -> None:
        """Remove all entries."""
        self._set(NO_ENTRIES)

    def _range(self, entries: Entries) -> tuple[int, int]:
        """Return the index range of the entries whose due times lie within those of `entries`."""
        dues = entries["due_ms"].astype(np.int64)
        first, stop = np.searchsorted(self._dues, dues.min(), "left"), np.searchsorted(self._dues, dues.max(), "right")
        return int(first), int(stop)

    def _set(self, waiting: Entries) -> None:
        self._waiting = waiting
        #: The due times of the entries, as a contiguous array.
        self._dues: npt.NDArray[np.int64] = waiting["due_ms"].astype(np.int64)
