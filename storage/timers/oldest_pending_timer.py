"""Find the oldest pending timer in the timer log of a closed store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil
from raymq.storage.timers import timer_state
from raymq.storage.timers.expiry_watermark import is_expired
from raymq.storage.timers.timer_entry import NO_ENTRIES, Entries, EntryKind
from raymq.storage.timers.timer_journal import read_valid_prefix
from raymq.storage.timers.timer_run import TimerRun


def find_oldest_pending(folder: Path, *, log_min: int, before: int, log_end: int) -> tuple[int, int]:
    """Return the oldest waiting message's physical offset, and the checked end of the timer queue.

    Messages from that end of the timer queue on are not in the timer log yet. Only data that was on disk at the last
    checkpoint counts, because later data may be lost. Nothing is written.

    Args:
        log_min: messages below this physical offset were deleted with their log file and do not count.
        before: only messages below this physical offset count; it is returned if none of them waits.
        log_end: the log is known to be on disk up to this offset. A timer counts as ended only if the record that ended
            it lies before it, because a later record may be lost.

    Raises:
        StoreBusy, StoreFailed: the files cannot be read now.
    """
    try:
        return _oldest(folder, log_min, before, log_end)
    except StoreCorrupt:  # opening the store rebuilds the timer log from the timer queue
        return before, 0


def _oldest(folder: Path, log_min: int, before: int, log_end: int) -> tuple[int, int]:
    state = timer_state.peek(folder)
    if state is None:
        return before, 0
    runs = [TimerRun(folder, metadata) for metadata in state.runs]
    parts = [run.part(0, len(run)) for run in runs]
    found = timer_state.journals(folder, state.journal)
    for number, length in state.lengths.items():
        if length:
            if number not in found:
                raise StoreCorrupt(str(timer_state.journal_path(folder, number)), 0, "not a file of timers")
            parts.append(_journal(found[number], length))
    waits = [part[(part["kind"] == EntryKind.WAITS) & (part["physical_offset"] < before)] for part in parts]
    waiting = np.concatenate([NO_ENTRIES, *waits])
    waiting = waiting[waiting["physical_offset"] >= log_min]
    offsets = np.unique(waiting["queue_offset"].astype(np.int64))
    for part in parts:
        settled = part[(part["kind"] != EntryKind.WAITS) & (part["physical_offset"] < log_end)]["queue_offset"]
        offsets = np.setdiff1d(offsets, settled.astype(np.int64))
    overs = [over for over in state.overs if over.log_end <= log_end]
    waiting = waiting[np.isin(waiting["queue_offset"].astype(np.int64), offsets) & ~is_expired(waiting, overs)]
    return int(waiting["physical_offset"].astype(np.int64).min(initial=before)), state.enqueued


def _journal(path: Path, length: int) -> Entries:
    entries, whole = read_valid_prefix(fileutil.read_whole(path)[:length])
    if whole < length:
        raise StoreCorrupt(str(path), whole, f"timers whose {length} bytes are not what was written")
    return entries
