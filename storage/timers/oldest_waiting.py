"""What waits in a part of the log, as the timer log tells of it on disk: asked before a store is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil
from raymq.storage.timers import state as timer_state
from raymq.storage.timers.entry import NO_ENTRIES, Entries, EntryKind
from raymq.storage.timers.journal import whole_part
from raymq.storage.timers.over import is_over
from raymq.storage.timers.run import TimerRun


def oldest_waiting(folder: Path, *, log_min: int, before: int, log_end: int) -> tuple[int, int]:
    """Where the oldest message lies that waits, and up to which offset of the timer queue that is told.

    Only what was on disk with the last checkpoint counts: what was told later may be lost. Nothing is written.

    Args:
        log_min: what lay before this place went with its log file, and keeps no other one.
        before: no place at or behind this one is asked for; it is answered where nothing waits before it.
        log_end: the log is surely on disk up to there: an end whose copy lies behind it may have to come again.

    Raises:
        StoreBusy, StoreFailed: it cannot be read now.
    """
    try:
        return _oldest(folder, log_min, before, log_end)
    except StoreCorrupt:  # it is made anew from the timer queue when the store is opened
        return before, 0


def _oldest(folder: Path, log_min: int, before: int, log_end: int) -> tuple[int, int]:
    state = timer_state.peek(folder)
    if state is None:
        return before, 0
    runs = [TimerRun(folder, shape) for shape in state.runs]
    parts = [run.part(0, len(run)) for run in runs]
    found = timer_state.journals(folder, state.journal)
    for number, length in state.lengths.items():
        if length:
            if number not in found:
                raise StoreCorrupt(str(timer_state.journal_path(folder, number)), 0, "no timers")
            parts.append(_journal(found[number], length))
    waits = [part[(part["kind"] == EntryKind.WAITS) & (part["physical_offset"] < before)] for part in parts]
    waiting = np.concatenate([NO_ENTRIES, *waits])
    waiting = waiting[waiting["physical_offset"] >= log_min]
    offsets = np.unique(waiting["queue_offset"].astype(np.int64))
    for part in parts:
        told = part[(part["kind"] != EntryKind.WAITS) & (part["physical_offset"] < log_end)]["queue_offset"]
        offsets = np.setdiff1d(offsets, told.astype(np.int64))
    overs = [over for over in state.overs if over.log_end <= log_end]
    waiting = waiting[np.isin(waiting["queue_offset"].astype(np.int64), offsets) & ~is_over(waiting, overs)]
    return int(waiting["physical_offset"].astype(np.int64).min(initial=before)), state.enqueued


def _journal(path: Path, length: int) -> Entries:
    entries, whole = whole_part(fileutil.read_whole(path)[:length])
    if whole < length:
        raise StoreCorrupt(str(path), whole, f"timers whose {length} bytes are not what was written")
    return entries
