"""The near part of the timers: what is due within the next minute, in memory, in the order of due times. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raymq.storage.timers.entry import NO_ENTRIES, Entries


class TimerWheel:
    """Entries of the timer log by due time and queue offset; each queue offset at most once."""

    def __init__(self) -> None:
        self._set(NO_ENTRIES)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_due_ms(self) -> int | None:
        """When the first one is due; None if none waits."""
        return int(self._dues[0]) if len(self._dues) else None

    def add(self, entries: Entries) -> None:
        """Put entries in; those that are there already count once."""
        if not len(entries):
            return
        first, stop = self._range(entries)
        there = self._waiting[first:stop]
        new = entries[~np.isin(entries["queue_offset"], there["queue_offset"])]
        mixed = np.concatenate([there, new])
        order = np.lexsort((mixed["queue_offset"].astype(np.int64), mixed["due_ms"].astype(np.int64)))
        self._set(np.concatenate([self._waiting[:first], mixed[order], self._waiting[stop:]]))

    def due(self, now_ms: int, most: int, most_bytes: int) -> Entries:
        """What is due at `now_ms`, the earliest first: at least one if there is one, then up to both limits."""
        first = self._waiting[:most]
        first = first[first["due_ms"] <= now_ms]
        within = int(np.searchsorted(np.cumsum(first["size"], dtype=np.int64), most_bytes, "right"))
        return first[: max(1, within)]

    def discard(self, entries: Entries) -> None:
        """Take out what waits no more, as far as it is here: most often what comes first."""
        offsets = entries["queue_offset"]
        if np.array_equal(self._waiting["queue_offset"][: len(offsets)], offsets):
            self._set(self._waiting[len(offsets) :])
        elif len(offsets):
            first, stop = self._range(entries)
            there = self._waiting[first:stop]
            left = there[~np.isin(there["queue_offset"], offsets)]
            if len(left) < len(there):
                self._set(np.concatenate([self._waiting[:first], left, self._waiting[stop:]]))

    def clear(self) -> None:
        """Take out all."""
        self._set(NO_ENTRIES)

    def _range(self, entries: Entries) -> tuple[int, int]:
        """Where what is due when `entries` are stands, and all between."""
        dues = entries["due_ms"].astype(np.int64)
        first, stop = np.searchsorted(self._dues, dues.min(), "left"), np.searchsorted(self._dues, dues.max(), "right")
        return int(first), int(stop)

    def _set(self, waiting: Entries) -> None:
        self._waiting = waiting
        #: Their due times, side by side.
        self._dues: npt.NDArray[np.int64] = waiting["due_ms"].astype(np.int64)

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert bool((self._dues[1:] >= self._dues[:-1]).all())
        assert len(np.unique(self._waiting["queue_offset"])) == len(self._waiting)
