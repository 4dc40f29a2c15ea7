"""Timer logs for tests: entries, pending offsets, checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raymq.storage.timers.expiry_watermark import ExpiryWatermark
from raymq.storage.timers.timer_entry import ENTRY, HOUR_MS, MIN_KEY, Entries, EntryKind
from raymq.storage.timers.timer_log import TimerLog

HOUR = 400_000
START_MS = HOUR * HOUR_MS
EVER_MS = 1 << 60


def entry(due_ms: int, offset: int, place: int = 0, kind: EntryKind = EntryKind.WAITS, key: int = 7) -> Entries:
    return np.array([(due_ms, offset, place, key, 100, kind)], ENTRY)


def open_timer_log(folder: Path, log_end: int = 1 << 40) -> TimerLog:
    return TimerLog(folder, log_end=log_end)


def offsets(entries: Entries) -> list[int]:
    return entries["queue_offset"].tolist()


def waiting(log: TimerLog, until_ms: int = EVER_MS, begin_ms: int = 0, most: int = 1 << 20) -> list[int]:
    """Return the offsets of pending timers, in any number of calls."""
    found: list[int] = []
    begin = (begin_ms, MIN_KEY)
    while begin < (until_ms, MIN_KEY):
        part, following = log.waiting(begin, until_ms, most)
        assert following > begin
        found, begin = found + offsets(part), following
    return found


def checkpoint(log: TimerLog, log_end: int, over: ExpiryWatermark | None = None) -> None:
    write = log.checkpoint(log_end, over=over)
    assert write is not None
    write()
