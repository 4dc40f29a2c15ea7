"""The timer log: a journal and sorted runs of messages with a delivery time.

The runs are sorted by due time. The timer log is derived data: the messages are in the commit log, and every entry can
be rebuilt from there, except that a message could not be delivered. One entry says that a message waits, another one
with the same queue offset that it no longer waits; an entry survives a crash of the process when `append` returns. The
entries of the journal are also in memory. When they are many, they become a run, a file that is written once; runs of
about the same size are merged into one. So there are few runs however many messages wait, a checkpoint syncs the
journal and at most two runs, and expired entries are dropped when their runs are merged.

The state file records which runs exist, up to which offsets all of them cover the log, and how long the journal was
then; that part is on disk. After a power loss the journal is cut to that length, because any page of the unsynced rest
may be missing. All files have checksums: if one is damaged, all of the timer log is rebuilt.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt, StoreError, StoreFull
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.timers import timer_state
from raymq.storage.timers.expiry_watermark import ExpiryWatermark, add_watermark, is_expired
from raymq.storage.timers.timer_entry import (
    ENTRY,
    MIN_KEY,
    NO_ENTRIES,
    Entries,
    EntryKind,
    SortKey,
    min_due_ms,
    pending_entries,
    retained,
    sort_entries,
)
from raymq.storage.timers.timer_journal import RecoveredJournal, encode_append
from raymq.storage.timers.timer_run import TimerRun, merge_runs, write_run
from raymq.storage.timers.timer_state import TimerState

#: From how many entries on the journal becomes a run.
FOLD_ENTRIES: Final = 1 << 15
#: How many runs of about the same size are merged into one, which is about that many times larger.
_FAN: Final = 4
_log = logging.getLogger(__name__)


class _FrozenPart(NamedTuple):
    """The immutable part of the timer log.

    `frozen` are the entries that are about to become a run, `journal` is the number of the first journal after them,
    and `runs` are the existing runs.
    """

    frozen: Entries
    journal: int
    runs: tuple[TimerRun, ...]


class TimerLog:
    """The timer log of one store.

    It belongs to the store's writer; the function that `checkpoint` returns may be called on any thread.

    Attributes:
        enqueued: the timer log has the timer queue up to this offset.
        log_end: entries exist for all messages delivered from it before this physical offset.
        begin_ms: when the timer log was opened, no waiting message was due before this time.
        expired_before_ms: entries of ended messages that were due before this time may have been dropped.
        overs: the watermarks of expired entries. Such entries are dropped when their run is merged; until then a
            remaining entry may still say WAITS although the message does not wait any more.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log_end: int,
        queue_end: int = 1 << 62,
        memory_lost: bool = False,
        keeps_dropped: bool = True,
    ) -> None:
        """Open the timer log, and drop entries of records that the log has lost.

        That includes records that an earlier start has truncated.

        Args:
            log_end: the end of the commit log.
            queue_end: the end of the timer queue.
            memory_lost: unsynced data may be lost.
            keeps_dropped: False: messages that could not be delivered are tried again.

        Raises:
            StoreCorrupt: a newer version of RayMQ wrote the timer log.
            StoreFull, StoreFailed: it cannot be read or written.
        """
        self._folder = folder
        fileutil.make_folder(folder)
        state, runs, whole = _read(folder, log_end, memory_lost=memory_lost, keeps_dropped=keeps_dropped)
        journals = timer_state.journals(folder, state.journal)
        self._numbers = itertools.count(
            1 + max([state.journal, *journals, *(metadata.number for metadata in state.runs)])
        )
        self._writing = threading.Lock()
        #: Held briefly by the thread that changes `_settled`.
        self._settling = threading.Lock()
        lost = state.log_end > log_end or state.enqueued > queue_end or any(part.lost for part in whole)
        if any(run.metadata.last_physical_offset >= log_end or (not keeps_dropped and run.has_dropped) for run in runs):
            runs = self._new_run(retained(part, log_end, keeps_dropped) for part in merge_runs(runs, ()))
            lost = True
        self.enqueued, self.log_end = min(state.enqueued, queue_end), min(state.log_end, log_end)
        self.expired_before_ms = state.expired_before_ms
        # Other messages will get the offsets after the queue's end.
        self.overs = tuple(over._replace(queue_offset=min(over.queue_offset, queue_end)) for over in state.overs)
        self._saved = (state.enqueued, state.log_end)
        #: The number of checkpoints that were begun, and the number of the newest one that was finished.
        self._begun = self._finished = 0
        self._closed = False
        self._fresh = np.concatenate([NO_ENTRIES, *(part.entries for part in whole)]).astype(ENTRY)
        self._fresh_count = len(self._fresh)
        self._settled = _FrozenPart(NO_ENTRIES, state.journal, tuple(runs))
        self._journal = max(journals, default=state.journal)
        self._first_journal = state.journal
        self._fd, self._torn = -1, False
        self._length = whole[-1].length if whole else 0
        self.begin_ms = 0 if lost else min_due_ms(self._fresh, state.begin_ms)
        #: Journals that a crashed process had not finished turning into a run, and their lengths.
        self._older = {number: part.length for number, part in zip(journals, whole, strict=True)}
        if lost:
            self._save((self.enqueued, self.log_end), 0, state.journal, runs, self._synced(self._older))
        self._older.pop(self._journal, None)
        timer_state.remove_unused_files(folder, [run.path for run in runs], state.journal)

    def close(self) -> None:
        """Close the journal file after a running checkpoint; may be called again.

        Checkpoints that are not being written yet are not written any more.
        """
        with self._writing:
            self._closed = True
        self._close_journal()

    def _close_journal(self) -> None:
        if self._fd >= 0:
            fileutil.close(self._fd)
            self._fd = -1

    @property
    def runs(self) -> Sequence[TimerRun]:
        """Return the runs: all entries that are no longer in a journal."""
        return self._settled.runs

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, entries: Entries) -> None:
        """Write entries, which then survive a crash of the process.

        Raise StoreFull or StoreFailed if none of them was written.
        """
        if not len(entries):
            return
        stored = entries.astype(ENTRY)  # NumPy turns what it joins into this machine's byte order
        content = encode_append(stored)
        path = timer_state.journal_path(self._folder, self._journal)
        if self._fd < 0:
            self._fd = fileutil.open_for_append(path)
        if self._torn:
            self._cut(path)
        try:
            fileutil.write_all(self._fd, content, path)
        except StoreError:  # a partial entry must not precede the next append
            self._torn = True
            self._cut(path)
            raise
        self._length += len(content)
        end = self._fresh_count + len(stored)
        if end > len(self._fresh):
            grown = np.empty(max(end, 2 * len(self._fresh), 1_024), ENTRY)
            grown[: self._fresh_count] = self._recent()
            self._fresh = grown
        self._fresh[self._fresh_count : end] = stored
        self._fresh_count = end

    def _cut(self, path: Path) -> None:
        fileutil.truncate(self._fd, self._length, path)
        self._torn = False

    # -- out -----------------------------------------------------------------------------------------------------

    def find(self, due_ms: int, key: int) -> Entries:
        """Return all entries of messages with that due time and key.

        Entries that a watermark covers may be missing in part or all.
        """
        frozen, _, runs = self._settled
        recent = [part[(part["key"] == key) & (part["due_ms"] == due_ms)] for part in (frozen, self._recent())]
        found = np.concatenate([*(run.of(due_ms, key) for run in runs), *recent])
        return self._without_over(found)

    def waiting(self, begin: SortKey, until_ms: int, most: int) -> tuple[Entries, SortKey]:
        """Return the waiting entries from `begin` on that are due before `until_ms`.

        They are sorted by due time and queue offset.

        Args:
            most: about how many entries are checked; the following ones are left for the next call.

        Returns:
            the waiting entries, and the sort key before which they are complete.
        """
        frozen, _, runs = self._settled
        end: SortKey = max(begin, (until_ms, MIN_KEY))
        after = begin[0], begin[1] + 1  # entries with the same sort key stay together
        firsts = [run.lower_bound(begin) for run in runs]
        unsorted = [part for part in (frozen, self._recent()) if len(part)]
        each = max(1, most // max(1, len(runs) + len(unsorted)))
        for run, first in zip(runs, firsts, strict=True):
            if first + each < len(run):
                end = min(end, max(after, run.mark(first + each)))
        unsorted = [_between(part, begin, end) for part in unsorted]
        end = min([end, *(max(after, _mark_of(part, each)) for part in unsorted if len(part) > each)])
        parts = [run.part(first, run.lower_bound(end)) for run, first in zip(runs, firsts, strict=True)]
        parts += [NO_ENTRIES, *(_between(part, begin, end) for part in unsorted)]
        return self._without_over(pending_entries(np.concatenate(parts))), end

    def _without_over(self, entries: Entries) -> Entries:
        """Return the entries without waiting ones that a watermark covers."""
        if not self.overs:
            return entries
        remaining: Entries = entries[(entries["kind"] != EntryKind.WAITS) | ~is_expired(entries, self.overs)]
        return remaining

    def ended_between(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the timer queue's offsets in first..stop-1 whose messages wait no more."""
        frozen, _, runs = self._settled
        found = [run.ended_between(first, stop) for run in runs]
        for part in (frozen, self._recent()):
            offsets = part["queue_offset"][part["kind"] != EntryKind.WAITS].astype(np.int64)
            found.append(offsets[(offsets >= first) & (offsets < stop)])
        return np.unique(np.concatenate(found))

    def _recent(self) -> Entries:
        """Return the entries of the current journal."""
        recent: Entries = self._fresh[: self._fresh_count]
        return recent

    # -- to disk -------------------------------------------------------------------------------------------------

    def checkpoint(
        self, log_end: int, *, begin_ms: int = 0, over: ExpiryWatermark | None = None
    ) -> Callable[[], None] | None:
        """Return a function that makes all current entries durable; None if nothing is new.

        The function brings the entries to disk and records that in the state. It may be called on another thread. If it
        raises StoreFull or StoreFailed, the last state stays valid. If it is not called, the function of the next
        checkpoint does its work.

        Args:
            log_end: the log's end at this moment.
            begin_ms: no waiting message is due before this time.
            over: the watermark of ended timers, whose entries may be dropped: their delivered copies are on disk.
        """
        self.log_end = log_end
        position = self.enqueued, log_end
        if self._fresh_count >= FOLD_ENTRIES and not len(self._settled.frozen):
            self._freeze()
        if position == self._saved and not len(self._settled.frozen):
            return None
        seen, journal, length = self._settled, self._journal, self._length
        self._begun += 1
        number = self._begun
        if over is not None:
            self.overs, self.expired_before_ms = (
                add_watermark(self.overs, over),
                max(self.expired_before_ms, over.due_ms),
            )
        overs = self.overs

        def write() -> None:
            with self._writing:
                if number > self._finished and not self._closed:  # else a later checkpoint has done the work
                    self._write(position, begin_ms, overs, seen, journal, length)
                    self._finished = number

        return write

    def _freeze(self) -> None:
        """Freeze the current entries, which become a run; start a new journal."""
        self._close_journal()
        self._journal = next(self._numbers)
        with self._settling:
            self._settled = _FrozenPart(self._recent(), self._journal, self._settled.runs)
        self._fresh, self._fresh_count, self._length = NO_ENTRIES, 0, 0

    def _write(
        self,
        position: tuple[int, int],
        begin_ms: int,
        overs: Sequence[ExpiryWatermark],
        seen: _FrozenPart,
        journal: int,
        length: int,
    ) -> None:
        """Do the work of the function that `checkpoint` returns.

        Args:
            seen, journal, length: the values at the call of `checkpoint`; `begin_ms` does not cover later entries.
        """
        now = self._settled
        runs, first_journal = list(now.runs), self._first_journal
        try:
            if len(now.frozen):
                runs += self._new_run([sort_entries(now.frozen)])
                first_journal = now.journal
                if now.frozen is not seen.frozen:
                    begin_ms = min_due_ms(now.frozen, begin_ms)
            joined = _to_join([run for run in runs if run in seen.runs], overs)
            if joined:
                runs = [run for run in runs if run not in joined] + self._new_run(merge_runs(joined, overs))
            needed = {n: end for n, end in {**self._older, journal: length}.items() if n >= first_journal}
            lengths = self._synced(needed)
            fileutil.sync_directory(self._folder)
            self._save(position, begin_ms, first_journal, runs, lengths)
        except StoreFull:  # the last state stays valid and does not use the new runs; a retry writes other files
            with contextlib.suppress(StoreError):
                for run in runs:
                    if run not in now.runs:
                        fileutil.remove(run.path)
            raise
        self._saved, self._first_journal = position, first_journal
        with self._settling:
            frozen = NO_ENTRIES if self._settled.frozen is now.frozen else self._settled.frozen
            self._settled = _FrozenPart(frozen, self._settled.journal, tuple(runs))
        timer_state.remove_unused_files(self._folder, [run.path for run in runs], first_journal)

    def _new_run(self, parts: Iterable[Entries]) -> list[TimerRun]:
        run = write_run(self._folder, next(self._numbers), parts)
        return [] if run is None else [run]

    def _synced(self, lengths: dict[int, int]) -> dict[int, int]:
        """Sync the journals, at least up to the given lengths; return the lengths."""
        for number in lengths:
            sync_path(timer_state.journal_path(self._folder, number))
        return lengths

    def _save(
        self,
        position: tuple[int, int],
        begin_ms: int,
        journal: int,
        runs: Sequence[TimerRun],
        lengths: Mapping[int, int],
    ) -> None:
        shapes = [run.metadata for run in runs]
        TimerState(*position, begin_ms, self.expired_before_ms, journal, shapes, lengths, self.overs).save(self._folder)


def _read(
    folder: Path, log_end: int, *, memory_lost: bool, keeps_dropped: bool
) -> tuple[TimerState, list[TimerRun], list[RecoveredJournal]]:
    """Return the state, its runs and its journals; see `RecoveredJournal.of`.

    If a file is damaged, or the log has lost the end of timers whose entries may have been dropped, return an empty
    state: all of the timer log is then rebuilt from the commit log.
    """
    state = timer_state.load(folder)
    if state is not None:
        try:
            runs = [TimerRun(folder, metadata) for metadata in state.runs]
            journals = timer_state.journals(folder, state.journal)
            for number, length in state.lengths.items():
                if length and number not in journals:
                    raise StoreCorrupt(str(timer_state.journal_path(folder, number)), 0, "not a file of timers")
            saved = [state.lengths.get(number, 0) for number in journals]
            whole = [
                RecoveredJournal.of(
                    path, saved=length, log_end=log_end, memory_lost=memory_lost, keeps_dropped=keeps_dropped
                )
                for path, length in zip(journals.values(), saved, strict=True)
            ]
        except StoreCorrupt as error:
            _log.warning("the timers are rebuilt from the log: %s", error)
        else:
            if all(over.log_end <= log_end for over in state.overs):
                return state, runs, whole
            _log.warning("the timers are rebuilt from the log, which has lost some of their ends: %s", folder)
    else:
        _log.warning("the timers are rebuilt from the log: the state in %s cannot be read", folder)
    return timer_state.reset_state(folder), [], []


def _to_join(runs: Sequence[TimerRun], overs: Sequence[ExpiryWatermark]) -> list[TimerRun]:
    """Return the runs to merge.

    These are the runs at least half of whose entries are expired; if there are none, enough runs of about the same
    size.
    """
    expired_before_ms = max((each.due_ms for each in overs), default=0)
    early = [(run, run.lower_bound((expired_before_ms, MIN_KEY))) for run in runs]
    over = [
        run
        for run, stop in early
        if 2 * stop >= len(run) and 2 * np.count_nonzero(is_expired(run.part(0, stop), overs)) >= len(run)
    ]
    if over:
        return over
    sizes: dict[int, list[TimerRun]] = {}
    for run in runs:
        sizes.setdefault(int(math.log(max(1, len(run) / FOLD_ENTRIES), _FAN) + 0.25), []).append(run)
    return next((alike for _, alike in sorted(sizes.items()) if len(alike) >= _FAN), [])


def _between(entries: Entries, begin: SortKey, end: SortKey) -> Entries:
    """Return the entries from sort key `begin` on and before `end`."""
    due = entries["due_ms"].astype(np.int64)
    rough = entries[(due >= begin[0]) & (due <= end[0])]
    due, key = rough["due_ms"].astype(np.int64), rough["key"].astype(np.int64)
    within = ((due > begin[0]) | (key >= begin[1])) & ((due < end[0]) | (key < end[1]))
    found: Entries = rough[within]
    return found


def _mark_of(entries: Entries, number: int) -> SortKey:
    """Return the sort key of this rank among the entries, without sorting them."""
    due = entries["due_ms"].astype(np.int64)
    due_ms = int(np.partition(due, number)[number])
    keys = entries["key"][due == due_ms].astype(np.int64)
    earlier = number - int(np.count_nonzero(due < due_ms))
    return due_ms, int(np.partition(keys, earlier)[earlier])
