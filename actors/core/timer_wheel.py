"""The near part of the timers: what is due within the next minute, in memory, in the order of due times. Pure."""

from __future__ import annotations

import numpy as np

from raymq.storage.timer_log import NO_ENTRIES, Entries


class TimerWheel:
    """Entries of `raymq.storage.timer_log`, sorted; each queue offset at most once."""

    def __init__(self) -> None:
        self._waiting: Entries = NO_ENTRIES

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_due_ms(self) -> int | None:
        """When the first one is due; None if none waits."""
        return int(self._waiting["due_ms"][0]) if len(self._waiting) else None

    def add(self, entries: Entries) -> None:
        """Put entries in; those that are there already count once."""
        if not len(entries):
            return
        new = entries[~np.isin(entries["queue_offset"], self._waiting["queue_offset"])]
        merged = np.concatenate([self._waiting, new])
        self._waiting = merged[np.lexsort((merged["queue_offset"], merged["due_ms"]))]

    def due(self, now_ms: int, most: int, most_bytes: int) -> Entries:
        """What is due at `now_ms`, the earliest first: at least one if there is one, then up to both limits."""
        first = self._waiting[:most]
        first = first[first["due_ms"] <= now_ms]
        within = int(np.searchsorted(np.cumsum(first["size"], dtype=np.int64), most_bytes, "right"))
        return first[: max(1, within)]

    def discard(self, queue_offsets: np.typing.ArrayLike) -> None:
        """Take out what waits no more: most often what comes first."""
        count = np.size(queue_offsets)
        if np.array_equal(self._waiting["queue_offset"][:count], queue_offsets):
            self._waiting = self._waiting[count:]
            return
        self._waiting = self._waiting[~np.isin(self._waiting["queue_offset"], queue_offsets)]

    def clear(self) -> None:
        """Take out all."""
        self._waiting = NO_ENTRIES

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        dues = self._waiting["due_ms"]
        assert bool((dues[1:] >= dues[:-1]).all())
        assert len(np.unique(self._waiting["queue_offset"])) == len(self._waiting)
