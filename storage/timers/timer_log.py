"""Which messages wait for a time of their own: a journal of entries, and runs of them in the order of due times.

Derived data: the messages lie in the log, and every entry can be made again from there. One entry says that a message
waits, another one with the same queue offset that it does so no more; each survives the process when `append` returns.
What is in the journal is in memory, too. When that is much, it becomes a run, a file that is written once; runs of
about the same size become one. So there are few of them however much waits, a checkpoint syncs the journal and at most
two runs, and what is over goes with the runs that it stands in.

The state beside them says which runs there are, up to where all of it holds what the log has, and how long the journal
was then; that is on disk. After a loss of power the journal goes back to that, for of what was not synced any page may
be missing. All files have checksums: what is damaged is made anew, with all the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt, StoreError, StoreFull
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.timers import state as timer_state
from raymq.storage.timers.entry import (
    ENTRY,
    LEAST_KEY,
    NO_ENTRIES,
    Entries,
    EntryKind,
    Mark,
    in_order,
    least_due_ms,
    still_waiting,
)
from raymq.storage.timers.journal import Kept, framed
from raymq.storage.timers.over import Over, is_over, with_over
from raymq.storage.timers.run import TimerRun, merged, write_run
from raymq.storage.timers.state import TimerState

#: So many entries become a run.
FOLD_ENTRIES: Final = 1 << 15
#: So many runs of about the same size become one, which is so many times larger.
_FAN: Final = 4
_log = logging.getLogger(__name__)


class _Settled(NamedTuple):
    """What does not change any more: what is about to become a run, the first journal behind it, and the runs."""

    frozen: Entries
    journal: int
    runs: tuple[TimerRun, ...]


class TimerLog:
    """The timer log of one store. Belongs to the store's writer; what `checkpoint` returns to any thread.

    Attributes:
        enqueued: the timer queue is in it up to this offset.
        log_end: entries are there for all that was delivered from it before this place of the log.
        begin_ms: when it was opened, nothing waited that was due before.
        over_ms: of what was due before, some things may have been forgotten that waited no more.
        overs: what is over for good. Entries of it go when their run is joined with others; in those that are left
            it may still wait, and does not.
    """

    def __init__(self, folder: Path, *, log_end: int, queue_end: int = 1 << 62, memory_lost: bool = False) -> None:
        """Open it; entries of records that the log has lost are dropped, also where an earlier start has cut it.

        Args:
            log_end: where the log ends, and
            queue_end: the timer queue.
            memory_lost: what was not synced may be gone.

        Raises:
            StoreCorrupt: a newer version of RayMQ wrote it. StoreFull, StoreFailed.
        """
        self._folder = folder
        fileutil.make_folder(folder)
        state, runs, whole = _read(folder, log_end, memory_lost=memory_lost)
        journals = timer_state.journals(folder, state.journal)
        self._numbers = itertools.count(1 + max([state.journal, *journals, *(shape.number for shape in state.runs)]))
        self._writing = threading.Lock()
        #: Held for a moment by who changes `_settled`.
        self._settling = threading.Lock()
        lost = state.log_end > log_end or state.enqueued > queue_end or any(part.lost for part in whole)
        if any(run.shape.last_place >= log_end for run in runs):
            runs = self._new_run(_before(runs, log_end))
            lost = True
        self.enqueued, self.log_end = min(state.enqueued, queue_end), min(state.log_end, log_end)
        self.over_ms = state.over_ms
        # What the log has lost of how it ended may have to come again; other messages have the offsets behind its end.
        kept = [over for over in state.overs if over.log_end <= log_end]
        self.overs = tuple(over._replace(queue_offset=min(over.queue_offset, queue_end)) for over in kept)
        self._saved = (state.enqueued, state.log_end)
        #: How many checkpoints were begun, and the newest one that was finished.
        self._begun = self._finished = 0
        self._fresh = np.concatenate([NO_ENTRIES, *(part.entries for part in whole)]).astype(ENTRY)
        self._fresh_count = len(self._fresh)
        self._settled = _Settled(NO_ENTRIES, state.journal, tuple(runs))
        self._journal = max(journals, default=state.journal)
        self._first_journal = state.journal
        self._fd, self._torn = -1, False
        self._length = whole[-1].length if whole else 0
        self.begin_ms = 0 if lost else least_due_ms(self._fresh, state.begin_ms)
        #: Those that a process that died had begun to make a run of, and their lengths.
        self._older = {number: part.length for number, part in zip(journals, whole, strict=True)}
        if lost:
            self._save((self.enqueued, self.log_end), 0, state.journal, runs, self._synced(self._older))
        self._older.pop(self._journal, None)
        timer_state.tidy(folder, [run.path for run in runs], state.journal)

    def close(self) -> None:
        """Let go of the journal. May be called again."""
        if self._fd >= 0:
            fileutil.close(self._fd)
            self._fd = -1

    @property
    def runs(self) -> Sequence[TimerRun]:
        """What is not in the journal."""
        return self._settled.runs

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, entries: Entries) -> None:
        """Write entries; they survive the process. StoreFull, StoreFailed: none of them is there."""
        if not len(entries):
            return
        stored = entries.astype(ENTRY)  # NumPy turns what it joins into this machine's byte order
        content = framed(stored)
        path = timer_state.journal_path(self._folder, self._journal)
        if self._fd < 0:
            self._fd = fileutil.open_for_append(path)
        if self._torn:
            self._cut(path)
        try:
            fileutil.write_all(self._fd, content, path)
        except StoreError:  # no half entry may stand before the next one
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
        """All that is told of messages of that key that are due then; of what is over perhaps not all, or nothing."""
        frozen, _, runs = self._settled
        recent = [part[(part["key"] == key) & (part["due_ms"] == due_ms)] for part in (frozen, self._recent())]
        found = np.concatenate([*(run.of(due_ms, key) for run in runs), *recent])
        return self._without_over(found)

    def waiting(self, begin: Mark, until_ms: int, most: int) -> tuple[Entries, Mark]:
        """What waits from `begin` on and is due before `until_ms`, by due time and queue offset.

        Args:
            most: of the runs about so many entries are looked at; what is behind them is left for the next call.

        Returns:
            What waits, and the mark before which it is complete.
        """
        frozen, _, runs = self._settled
        end: Mark = max(begin, (until_ms, LEAST_KEY))
        firsts = [run.lower(begin) for run in runs]
        each = max(1, most // max(1, len(runs)))
        for run, first in zip(runs, firsts, strict=True):
            if first + each < len(run) and (mark := run.mark(first + each)) < end:
                end = mark if mark > begin else (begin[0], begin[1] + 1)  # of one mark all are taken
        parts = [run.part(first, run.lower(end)) for run, first in zip(runs, firsts, strict=True)]
        parts += [_between(part, begin, end) for part in (frozen, self._recent())]
        return self._without_over(still_waiting(np.concatenate(parts))), end

    def _without_over(self, entries: Entries) -> Entries:
        """Without those that wait by what is left of what is told of them, and do not."""
        if not self.overs:
            return entries
        left: Entries = entries[(entries["kind"] != EntryKind.WAITS) | ~is_over(entries, self.overs)]
        return left

    def ended_between(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """The offsets first..stop-1 of the timer queue of which it is told that they wait no more."""
        frozen, _, runs = self._settled
        found = [run.ended_between(first, stop) for run in runs]
        for part in (frozen, self._recent()):
            offsets = part["queue_offset"][part["kind"] != EntryKind.WAITS].astype(np.int64)
            found.append(offsets[(offsets >= first) & (offsets < stop)])
        return np.unique(np.concatenate(found))

    def _recent(self) -> Entries:
        """What is in the journal since the last run."""
        recent: Entries = self._fresh[: self._fresh_count]
        return recent

    # -- to disk -------------------------------------------------------------------------------------------------

    def checkpoint(self, log_end: int, *, begin_ms: int = 0, over: Over | None = None) -> Callable[[], None] | None:
        """What brings all entries so far to disk and says so in the state; None if there is nothing new.

        Args:
            log_end: the log's end at this moment.
            begin_ms: nothing waits that is due before.
            over: what is over, and may be forgotten: the copies survive the machine.

        What is returned may be called on another thread; StoreFull, StoreFailed: the last state holds. If it is not
        called, the next one does its part.
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
            self.overs, self.over_ms = with_over(self.overs, over), max(self.over_ms, over.due_ms)
        overs = self.overs

        def write() -> None:
            with self._writing:
                if number > self._finished:  # else a later one has done it
                    self._write(position, begin_ms, overs, seen, journal, length)
                    self._finished = number

        return write

    def _freeze(self) -> None:
        """What was told so far becomes a run; from now on another journal is written."""
        self.close()
        self._journal = next(self._numbers)
        with self._settling:
            self._settled = _Settled(self._recent(), self._journal, self._settled.runs)
        self._fresh, self._fresh_count, self._length = NO_ENTRIES, 0, 0

    def _write(
        self,
        position: tuple[int, int],
        begin_ms: int,
        overs: Sequence[Over],
        seen: _Settled,
        journal: int,
        length: int,
    ) -> None:
        """What `checkpoint` returns.

        Args:
            seen, journal, length: as they were at the call of `checkpoint`; of what came later, `begin_ms` says
                nothing.
        """
        now = self._settled
        runs, first_journal = list(now.runs), self._first_journal
        try:
            if len(now.frozen):
                runs += self._new_run([in_order(now.frozen)])
                first_journal = now.journal
                if now.frozen is not seen.frozen:
                    begin_ms = least_due_ms(now.frozen, begin_ms)
            joined = _to_join([run for run in runs if run in seen.runs], overs)
            if joined:
                runs = [run for run in runs if run not in joined] + self._new_run(merged(joined, overs))
            needed = {n: end for n, end in {**self._older, journal: length}.items() if n >= first_journal}
            lengths = self._synced(needed)
            fileutil.sync_directory(self._folder)
            self._save(position, begin_ms, first_journal, runs, lengths)
        except StoreFull:  # the state is the last one, and names none of these: what is tried again makes others
            with contextlib.suppress(StoreError):
                for run in runs:
                    if run not in now.runs:
                        fileutil.remove(run.path)
            raise
        self._saved, self._first_journal = position, first_journal
        with self._settling:
            frozen = NO_ENTRIES if self._settled.frozen is now.frozen else self._settled.frozen
            self._settled = _Settled(frozen, self._settled.journal, tuple(runs))
        timer_state.tidy(self._folder, [run.path for run in runs], first_journal)

    def _new_run(self, parts: Iterable[Entries]) -> list[TimerRun]:
        run = write_run(self._folder, next(self._numbers), parts)
        return [] if run is None else [run]

    def _synced(self, lengths: dict[int, int]) -> dict[int, int]:
        """Bring journals to disk, at least so much of them."""
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
        shapes = [run.shape for run in runs]
        TimerState(*position, begin_ms, self.over_ms, journal, shapes, lengths, self.overs).save(self._folder)


def _read(folder: Path, log_end: int, *, memory_lost: bool) -> tuple[TimerState, list[TimerRun], list[Kept]]:
    """The state, its runs and its journals; see `Kept.of`.

    What is damaged counts as not there, and all of it is made again from the log then.
    """
    state = timer_state.load(folder)
    if state is not None:
        try:
            runs = [TimerRun(folder, shape) for shape in state.runs]
            journals = timer_state.journals(folder, state.journal)
            for number, length in state.lengths.items():
                if length and number not in journals:
                    raise StoreCorrupt(str(timer_state.journal_path(folder, number)), 0, "no timers")
            saved = [state.lengths.get(number, 0) for number in journals]
            whole = [
                Kept.of(path, saved=length, log_end=log_end, memory_lost=memory_lost)
                for path, length in zip(journals.values(), saved, strict=True)
            ]
        except StoreCorrupt as error:
            _log.warning("the timers are made anew from the log: %s", error)
        else:
            return state, runs, whole
    else:
        _log.warning("the timers are made anew from the log: what %s says cannot be read", folder)
    return timer_state.begin_anew(folder), [], []


def _to_join(runs: Sequence[TimerRun], overs: Sequence[Over]) -> list[TimerRun]:
    """The runs that become one: what is half over or more, else as many as are of about the same size."""
    over_ms = max((each.due_ms for each in overs), default=0)
    early = [(run, run.lower((over_ms, LEAST_KEY))) for run in runs]
    over = [
        run
        for run, stop in early
        if 2 * stop >= len(run) and 2 * np.count_nonzero(is_over(run.part(0, stop), overs)) >= len(run)
    ]
    if over:
        return over
    sizes: dict[int, list[TimerRun]] = {}
    for run in runs:
        sizes.setdefault(int(math.log(max(1, len(run) / FOLD_ENTRIES), _FAN) + 0.25), []).append(run)
    return next((alike for _, alike in sorted(sizes.items()) if len(alike) >= _FAN), [])


def _between(entries: Entries, begin: Mark, end: Mark) -> Entries:
    """Those from one mark to another, which is not included."""
    due = entries["due_ms"].astype(np.int64)
    rough = entries[(due >= begin[0]) & (due <= end[0])]
    due, key = rough["due_ms"].astype(np.int64), rough["key"].astype(np.int64)
    within = ((due > begin[0]) | (key >= begin[1])) & ((due < end[0]) | (key < end[1]))
    found: Entries = rough[within]
    return found


def _before(runs: Sequence[TimerRun], log_end: int) -> Iterator[Entries]:
    """What runs tell of records before that place of the log."""
    for part in merged(runs, ()):
        yield part[part["physical_offset"] < log_end]
