"""Append events to the state journal, sync them, and compact them into snapshots.

An event is written with a single write; then the kernel has it, and it survives a crash of the process. `sync` makes it
survive a crash of the machine. When the journal has grown, a thread writes a snapshot of all tables while further
events go to a new file. A replica's journal gets its master's events, with the same numbers.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.storage.clock import wall_ms
from raymq.storage.errors import InvalidInput, StoreBusy, StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.files.worker_thread import begin
from raymq.storage.journal import journal_files
from raymq.storage.journal.journal_copy import JournalCopy
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.journal.journal_files import LoadedState
from raymq.storage.journal.journal_frames import frame_of
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.journal.replication_backlog import ReplicationBacklog

#: A shorter journal is not compacted; a longer one if it is twice as long as the last snapshot.
_COMPACT_BYTES: Final = 4 << 20
#: How many snapshots are kept.
_KEPT_SNAPSHOTS: Final = 2
#: The binary logarithm of how many numbers `renumber` has for each millisecond.
_A_MS_BITS: Final = 20
#: A time in the year 2109; later times give no larger numbers, because 64 bits have no room for them.
_LATEST_MS: Final = (1 << 42) - 1


def _ignore_failure(_: StoreError) -> None:
    """Ignore a failure of the disk; for a journal without a store."""


def _no_log() -> int:
    return 0


class StateJournal:
    """The journal of one store directory, and the tables whose events it has.

    Any thread may call any method. Events have the order in which they are applied.

    Attributes:
        log_end: returns where the commit log ends; set once the log is open.
        folder: the folder of its files.
        loaded: what was read when the journal was opened.
        last: the number of the newest event.
        backlog: the newest events, for replicas; None: the broker has none.
        on_append: called after each event of `append`, by the thread that appended it; None: by none.
    """

    def __init__(
        self,
        folder: Path,
        tables: Iterable[JournaledTable],
        *,
        writable: bool,
        log_end: Callable[[], int] = _no_log,
        on_failure: Callable[[StoreError], None] = _ignore_failure,
    ) -> None:
        """Read the files into the tables, which are empty before.

        Args:
            folder: the folder of the files; made if it is missing and `writable`.
            on_failure: called when the disk has failed so that events might be lost.

        Raises:
            StoreFull, StoreFailed, StoreBusy: the files cannot be read or opened.
        """
        self.folder = folder
        self._tables = {table.NUMBER: table for table in tables}
        self.log_end = log_end
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._fd = -1
        #: Held while an event is written and applied, and while the file is exchanged; never during a sync.
        self._appending = threading.RLock()
        #: Held during a sync, and while files are removed.
        self._syncing = threading.Lock()
        #: Held while files are removed, or opened for a copy; never during a sync.
        self._removing = threading.Lock()
        #: Held while a snapshot is written.
        self._compacting = threading.Lock()
        self._compaction: threading.Thread | None = None
        self._compact_at = _COMPACT_BYTES
        self._torn = False
        #: Encodes an event; only under `_appending`. `packb` would make a packer for each.
        self._pack: Callable[[tuple[Any, ...]], bytes] = msgpack.Packer().pack
        self._is_closing = False
        if writable:
            fileutil.make_folder(folder)
        self.loaded: LoadedState = journal_files.load_state(folder, self._tables, is_locked=writable)
        self.last = self.loaded.last
        self.backlog: ReplicationBacklog | None = None
        self.on_append: Callable[[], None] | None = None
        #: The number of the newest event of each table since the opening.
        self._newest: dict[int, int] = {}
        #: The number up to which all events are on disk.
        self._synced = 0
        #: The number of the newest snapshot.
        self._snapshot = max(self.loaded.snapshot, *self.loaded.damaged_snapshots, 0)
        #: The numbers of the snapshots that are not whole.
        self._damaged = set(self.loaded.damaged_snapshots)
        #: The file that events are appended to: its path, first number, and length in bytes.
        self._path = folder
        self._first, self._length = self.last + 1, 0
        #: Earlier files with events that may not be on disk.
        self._earlier: list[Path] = []
        #: Whether the name of a file may not be on disk.
        self._is_name_new = True
        if writable:
            self._open()

    def _open(self) -> None:
        newest = max(self.loaded.journals, default=0)
        if newest >= max(1, self.loaded.snapshot):
            # If all events of the newest file are damaged, the numbers go on behind its first one all the same.
            self._first, self._length, self.last = newest, self.loaded.end, max(self.last, newest - 1)
        self._earlier = [path for first, path in self.loaded.journals.items() if first < self._first]
        for left in journal_files.unfinished_files(self.folder):
            fileutil.unlink(left)
        self._path = path = journal_files.journal_path(self.folder, self._first)
        self._fd = fileutil.open_for_append(path)
        try:
            fileutil.truncate(self._fd, self._length, path)
        except BaseException:
            self._close_file()
            raise
        for table in self._tables.values():
            table.journal = self

    @property
    def has_snapshot(self) -> bool:
        """Return True if the journal has a snapshot, whole or not."""
        return self._snapshot > 0

    def newest_of(self, table: JournaledTable) -> int:
        """Return the number of a table's newest event since the opening, or 0."""
        return self._newest.get(table.NUMBER, 0)

    @property
    def is_lossy(self) -> bool:
        """Return True if the start has found that events are missing before others."""
        return self.loaded.lost > 0 or self.loaded.is_salvaged

    @property
    def synced(self) -> int:
        """Return the newest event's number on disk; 0 before the first sync."""
        return self._synced

    @property
    def has_events(self) -> bool:
        """Return True if the journal has a snapshot or an event."""
        return self.has_snapshot or self.loaded.last > 0 or bool(self._newest)

    # -- append --------------------------------------------------------------------------------------------------

    def append(self, table: JournaledTable, fields: Fields, before_apply: Callable[[], None] | None = None) -> int:
        """Write an event and apply it to its table; return its number.

        Args:
            before_apply: called between the two. If it raises, the event is removed again, and nothing has changed.

        Raises:
            StoreError: the journal was opened read-only, or is closed.
            StoreFull, StoreFailed: nothing has changed.
        """
        with self._appending:
            if self._fd < 0 or self._failure is not None:
                self._check()
            number, log_end = self.last + 1, self.log_end()
            payload = self._pack((number, log_end, table.NUMBER, *fields))
            frames = frame_of(payload)
            if table.COPIES > 1:
                frames *= table.COPIES
            self._write(frames)
            if before_apply is not None:
                try:
                    before_apply()
                except BaseException:
                    self._length -= len(frames)
                    self._torn = True
                    self._revoke()
                    raise
            if self.backlog is not None:
                self.backlog.add(JournalEvent(number, log_end, payload))
            self.last = self._newest[table.NUMBER] = number
            table.apply(fields)
            is_long = self._length >= self._compact_at
        if self.on_append is not None:
            self.on_append()
        if is_long:
            self._compact_beside()
        return number

    def append_shipped(self, events: Sequence[JournalEvent]) -> None:
        """Write the next events of the master's journal, and apply them.

        An event that its table cannot apply is set aside, as at a start.

        Raises:
            InvalidInput: the first event is not the next one; nothing has changed.
            StateMismatch: an event is malformed; nothing has changed.
            StoreError, StoreFull, StoreFailed: as `append`, for all of them.
        """
        with self._appending:
            self._check()
            read: list[tuple[JournalEvent, int, Fields]] = []
            for number, event in enumerate(events, self.last + 1):
                if event.sequence != number:
                    raise InvalidInput("sequence", str(number), event.sequence)
                read.append((event, *event.decode()))
            self._write(b"".join(self._frames_of(event.payload, table) for event, table, _ in read))
            try:
                for event, table, fields in read:
                    journal_files.apply_event(self._tables.get(table), event.sequence, table, fields)
                    self.last = self._newest[table] = event.sequence
                    if self.backlog is not None:
                        self.backlog.add(event)
            except BaseException as error:  # the file has events that were not applied: it has to be read again
                self._failure = StoreFailed(f"event {self.last + 1} could not be applied: {error!r:.200}")
                raise
            is_long = self._length >= self._compact_at
        if is_long:
            self._compact_beside()

    def _frames_of(self, payload: bytes, table_number: int) -> bytes:
        table = self._tables.get(table_number)
        return frame_of(payload) * (1 if table is None else table.COPIES)

    def _write(self, frames: bytes) -> None:
        if self._torn:
            self._cut()
        failpoint("state.before_write")
        try:
            fileutil.write_all(self._fd, frames, self._path)
        except StoreError:
            self._torn = True
            with contextlib.suppress(StoreError):
                self._cut()
            raise
        failpoint("state.after_write")
        self._length += len(frames)

    def _revoke(self) -> None:
        """Cut off a written event, also on disk, where another thread may have put it."""
        try:
            self._cut()
        except StoreError:
            return  # tried again before the next write
        try:
            fileutil.fdatasync(self._fd, self._path)
        except StoreError as error:
            self._failure = error
            self._on_failure(error)

    def _cut(self) -> None:
        """Cut off an incomplete or revoked event, because no event after it could be found."""
        fileutil.truncate(self._fd, self._length, self._path)
        self._torn = False

    def _check(self) -> None:
        """Raise if the journal takes no events."""
        if self._fd < 0:
            raise StoreError("the store was opened read-only, or closed")
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    # -- sync ----------------------------------------------------------------------------------------------------

    def sync(self, number: int | None = None) -> None:
        """Wait until the event of that number, or all events so far, are on disk.

        Raises:
            StoreBusy, StoreFull: a file could not be opened now; it is unknown what is on disk. May be called again.
            StoreError: the journal was closed before the event was synced.
            StoreFailed: they may not be on disk. No later event is accepted.
        """
        wanted = self.last if number is None else number
        with self._syncing:
            with self._appending:
                if self._synced >= wanted:
                    return
                if self._fd < 0 and number is None:
                    return  # closed
                self._check()
                target, earlier, is_name_new = self.last, list(self._earlier), self._is_name_new
                path = self._path
                fd = fileutil.duplicate(self._fd, path)
            try:
                for each in earlier:
                    sync_path(each)
                fileutil.fdatasync(fd, path)
                if is_name_new:
                    fileutil.sync_directory(self.folder)
            except (StoreBusy, StoreFull):
                raise
            except StoreError as error:
                self._failure = error
                self._on_failure(error)
                raise
            finally:
                fileutil.close(fd)
            with self._appending:
                self._synced = target
                self._earlier = [each for each in self._earlier if each not in earlier]
                if path == self._path:
                    self._is_name_new = False

    # -- compaction ----------------------------------------------------------------------------------------------

    def _compact_beside(self) -> None:
        """Begin to write a snapshot on another thread, unless that is under way."""
        with self._appending:
            # A failed compaction is tried again when the journal has grown as much again.
            self._compact_at = self._length + _COMPACT_BYTES
            if self._is_closing or (self._compaction is not None and self._compaction.is_alive()):
                return
            thread = threading.Thread(target=self._try_compact, name="raymq-state", daemon=True)
            with contextlib.suppress(StoreError):
                begin(thread)
                self._compaction = thread

    def _try_compact(self) -> None:
        with contextlib.suppress(StoreError):
            self.compact()

    def compact(self) -> None:
        """Write a snapshot of all tables, and remove the files no longer needed.

        Raises:
            StoreError: the journal was opened read-only, or is closed.
            StoreFull, StoreFailed, StoreBusy: not done; no event is lost.
        """
        with self._compacting:
            with self._appending:
                if self._fd < 0:
                    raise StoreError("the store was opened read-only, or closed")
                self._check()
                self._begin_file()
                number, log_end = self._first, self.log_end()
            failpoint("state.before_snapshot")
            content = b"".join(journal_files.snapshot_frames(number, log_end, self._tables))
            # It may have the effect of later events: after a loss of power the journal must not lack them.
            self.sync()
            fileutil.replace(journal_files.snapshot_path(self.folder, number), content)
            failpoint("state.after_snapshot")
            with self._appending:
                self._snapshot = number
                self._damaged.discard(number)
                self._compact_at = max(_COMPACT_BYTES, 2 * len(content))
            with self._syncing, self._removing:
                self._remove_old()

    def renumber(self) -> None:
        """Go on with a number that no journal has used, and write a snapshot.

        For tables that were changed without events: no other broker's journal has the same numbers then, so that each
        replica takes a copy. Raise as `compact`.
        """
        with self._appending:
            self._check()
            drawn = secrets.randbelow(1 << _A_MS_BITS)
            self.last = max(self.last + 1 + drawn, min(wall_ms(), _LATEST_MS) << _A_MS_BITS | drawn)
        self.compact()

    def _begin_file(self) -> None:
        """Append to a new file, unless the present one is empty."""
        if self._torn:
            self._cut()
        if self._length == 0 and self._first == self.last + 1:
            return
        if self._first == self.last + 1:
            self.last += 1  # all events of the file are damaged: the new one must not get its name
        path = journal_files.journal_path(self.folder, self.last + 1)
        fd = fileutil.open_for_append(path)
        fileutil.close(self._fd)
        self._earlier.append(self._path)
        self._fd, self._path, self._first, self._length, self._is_name_new = fd, path, self.last + 1, 0, True

    def _remove_old(self) -> None:
        """Keep the newest whole snapshots and the journals behind the older one of them.

        Nothing is removed as long as there are not so many: the journals from the first event on may be complete.
        """
        journals, snapshots = journal_files.files_in(self.folder)
        kept = sorted(snapshots.keys() - self._damaged)[-_KEPT_SNAPSHOTS:]
        if len(kept) < _KEPT_SNAPSHOTS:
            return
        removed = [path for first, path in journals.items() if first < kept[0]]
        removed += [path for number, path in snapshots.items() if number not in kept]
        with self._appending:
            self._earlier = [each for each in self._earlier if each not in removed]
        for path in removed:
            failpoint("state.before_removal")
            fileutil.unlink(path)

    def copy(self) -> JournalCopy:
        """Return the files with all events so far; the caller closes it.

        Raise StoreBusy or StoreFailed if they cannot be opened.
        """
        with self._removing, self._appending:
            self._check()
            if self._torn:
                self._cut()
            journals, snapshots = journal_files.files_in(self.folder)
            whole = max(snapshots.keys() - self._damaged, default=0)
            # Without a whole snapshot a start needs what can be read of all.
            needed = [snapshots[whole]] if whole else [*snapshots.values()]
            needed += [path for first, path in journals.items() if first >= whole]
            return JournalCopy(needed, self.last)

    def clamp(self, bounds: RecoveryBounds) -> None:
        """Remove from all tables what refers to lost log. Raise as `append`."""
        for table in self._tables.values():
            self.change((table, fields) for fields in list(table.clamp(bounds)))

    def change(self, events: Iterable[tuple[JournaledTable, Fields]]) -> None:
        """Append events, or only apply them if the journal was opened read-only. Raise as `append`."""
        for table, fields in events:
            if self._fd >= 0:
                self.append(table, fields)
            else:
                table.apply(fields)

    def compact_after_damage(self) -> None:
        """Write a snapshot after damage, so that no later start meets the damage.

        If the disk has no room, the next start meets it again.
        """
        if self.loaded.damage or self.loaded.lost or self.loaded.set_aside:
            with contextlib.suppress(StoreFull, StoreBusy):
                self.compact()

    def close(self, *, compact: bool) -> None:
        """Close the files; may be called more than once.

        Args:
            compact: write a snapshot first if events were added since the last one.

        Raises:
            StoreFull, StoreFailed: there is no new snapshot; no event is lost. The files are closed.
        """
        with self._appending:
            self._is_closing = True
            compaction = self._compaction
        if compaction is not None:
            compaction.join()
        try:
            if compact and self._fd >= 0 and (self.last >= max(1, self._snapshot) or self._damaged):
                self.compact()
        finally:
            self._close_file()

    def _close_file(self) -> None:
        with self._appending:
            for table in self._tables.values():
                table.journal = None
            if self._fd >= 0 and self._torn:
                with contextlib.suppress(StoreError):
                    self._cut()
            if self._fd >= 0:
                fileutil.close(self._fd)
            self._fd = -1
