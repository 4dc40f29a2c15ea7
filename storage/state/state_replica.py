"""The replica's side: apply the master's state changes to the replica's own directory.

No table of the directory is open meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from raymq.storage.errors import InvalidInput, StateMismatch, StoreFailed
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.state import expired_queue_offsets, recording_file_calls, topic_deletion_journal
from raymq.storage.state.delay_levels_of_replica import put_delay_levels_aside
from raymq.storage.state.replication_backlog import ReplicationBacklog
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.state_changes import FileChange, FileOperation, StateChange, decode_change
from raymq.storage.state.state_files import (
    CONFIG,
    RAYMQ_FOLDER,
    folders_above,
    is_stored_state,
    snapshot_marker,
)
from raymq.storage.state.state_snapshot import read_part
from raymq.storage.state.untracked_writes import UntrackedWrites

#: How many files are kept open for further appends.
_MAX_OPEN: Final = 32


class HandoverSource(Protocol):
    """An object that hands its numbers and newest changes to another one in the process."""

    def hand_over(self) -> tuple[ReplicationBacklog, SequenceFile, UntrackedWrites]:
        """Return the changes and numbers; later changes by other threads are untracked."""


class StateReplica:
    """The state of one directory.

    It belongs to one thread, except for `sync`, `last`, `folded` and `after`. No other thread may change a state file
    until it is closed or handed over; if one does, `last` is 0 until a snapshot has been loaded.
    """

    def __init__(self, directory: Path, *, predecessor: HandoverSource | None = None) -> None:
        """Read the number of the last change in the directory.

        Args:
            predecessor: the recorder that the directory had until now, in this process, while it was a master's.

        Raises:
            StoreFull, StoreFailed: the number cannot be stored.
        """
        self.directory = directory
        for folder in (CONFIG, RAYMQ_FOLDER):
            fileutil.make_folder(directory / folder)
        if predecessor is None:
            self._numbers = SequenceFile(directory)
            self._ring = ReplicationBacklog(self._numbers.done)
            self._foreign = UntrackedWrites(directory, self._numbers)
            recording_file_calls.install_recorder(directory, self._foreign)
        else:
            self._ring, self._numbers, self._foreign = predecessor.hand_over()
        #: The offset at which the master's log begins: the master no longer lists topics deleted before it.
        self.master_begin = 0
        #: How many untracked changes there were when a snapshot was begun.
        self._foreign_before = 0
        self._marker = snapshot_marker(directory)
        #: Whether no snapshot is incomplete. With an incomplete snapshot the replica must not be elected.
        self.is_whole = not self._marker.exists()
        #: A descriptor for appending and the file's size, by path.
        self._open: OrderedDict[str, tuple[int, int]] = OrderedDict()
        #: Paths that are known to be folders and not links.
        self._folders: set[str] = set()
        self._changed = _UnsyncedPaths()
        self._syncing = threading.Lock()

    @property
    def last(self) -> int:
        """Return the number of the last applied change.

        Return 0 if the content of the files is unknown, so that a snapshot is needed.
        """
        return self._numbers.done if self.is_whole and self._numbers.is_exact and not self.is_lost else 0

    @property
    def is_lost(self) -> bool:
        """Return True if some of the changes may never be on disk."""
        return self._changed.is_lost

    @property
    def folded(self) -> int:
        """Return the number up to which changes are no longer in memory."""
        return self._ring.folded

    def after(self, sequence: int) -> Sequence[StateChange]:
        """Return the changes after a number, at most 1,024 of them.

        Raise InvalidInput if some of them were dropped from memory.
        """
        return self._ring.after(sequence)

    def hand_over(self) -> tuple[ReplicationBacklog, SequenceFile, UntrackedWrites]:
        """Return the changes and numbers for a successor.

        This object must not be used any more.
        """
        self._forget_open()
        if not self.last:
            self._numbers.invalidate()
        return self._ring, self._numbers, self._foreign

    def invalidate(self) -> None:
        """Record that other threads may change files from now on.

        `last` is 0 until a snapshot has been loaded.
        """
        self._numbers.invalidate()

    def close(self) -> None:
        """Release the files, if there is no successor."""
        self._forget_open()
        recording_file_calls.uninstall_recorder(self._foreign)
        self._numbers.close()

    # -- the stream ------------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[StateChange]) -> None:
        """Apply the next changes, which then survive a crash of the process.

        The local log has to reach the log offsets of the changes.

        Raises:
            StateMismatch: a change is forged, or does not fit the local state; the changes before it were applied. If
                it does not fit, `last` is 0 from now on.
            InvalidInput: the local state is unknown, or the first change is not the next one; nothing was done.
            StoreFull, StoreFailed: not all changes were applied; `last` is 0 from now on.
        """
        if not changes:
            return
        last = self.last
        if not last:
            raise InvalidInput("changes", "none before a snapshot", len(changes))
        read = []
        for number, change in enumerate(changes, last + 1):
            if change.sequence != number:
                raise InvalidInput("sequence", str(number), change.sequence)
            read.append(decode_change(change.payload))
        self._numbers.begin(changes[-1].sequence)
        done = last
        try:
            with self._foreign.track():
                for change, file_change in zip(changes, read, strict=True):
                    self._make(file_change)
                    self._ring.add(change)
                    done = change.sequence
        except BaseException:
            self._numbers.finish(done)
            self._numbers.invalidate()
            raise
        self._numbers.finish(done)

    def _make(self, change: FileChange) -> None:
        operation, path = change.operation, change.path
        self._check_folders(path)
        if operation in (FileOperation.APPENDED, FileOperation.WRITTEN):
            self._write(change)
            return
        full = self.directory / path
        status = _status(full)
        if operation is FileOperation.FOLDER_MADE:
            if status is not None:
                raise StateMismatch(f"the folder exists already: {path}")
            fileutil.make_folder(full, durable=False)
            self._changed.names(path)
        elif operation is FileOperation.CREATED:
            if status is not None and not stat.S_ISREG(status.st_mode):
                raise StateMismatch(f"not a file: {path}")
            self._close(path)
            fileutil.close(fileutil.open_file(full, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if change.empty else 0)))
            self._changed.content(path)
            self._changed.names(path)
        elif status is None or stat.S_ISLNK(status.st_mode):
            raise StateMismatch(f"no such file or folder to change: {path}")
        elif operation is FileOperation.TRUNCATED:
            self._truncate(change, status)
        elif operation is FileOperation.RENAMED:
            self._rename(change, status)
        else:
            self._remove(change, status)

    def _write(self, change: FileChange) -> None:
        path = change.path
        known = self._open.get(path)
        fd, size = known if known is not None else self._opened(path)
        full = self.directory / path
        if change.at > size or (change.at < size and change.operation is FileOperation.APPENDED):
            raise StateMismatch(f"{path} ends at {size}, but the change begins at {change.at}")
        if change.at < size:
            self._close(path)
            fileutil.write_at(full, change.at + len(change.content), change.at, change.content)
        else:
            self._open.pop(path, None)
            try:
                fileutil.write_all(fd, change.content, full)
            except BaseException:
                fileutil.close(fd)
                raise
            self._open[path] = fd, size + len(change.content)
        self._changed.content(path)

    def _opened(self, path: str) -> tuple[int, int]:
        """Open a file for appending, and return the descriptor and the file's size."""
        full = self.directory / path
        status = _status(full)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise StateMismatch(f"not a file that can be written: {path}")
        while len(self._open) >= _MAX_OPEN:
            self._close(next(iter(self._open)))
        self._open[path] = fileutil.open_file(full, os.O_RDWR | os.O_APPEND), status.st_size
        return self._open[path]

    def _truncate(self, change: FileChange, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise StateMismatch(f"not a file that can be truncated: {change.path}")
        self._close(change.path)
        full = self.directory / change.path
        fd = fileutil.open_file(full, os.O_RDWR)
        try:
            fileutil.truncate(fd, change.at, full)
        finally:
            fileutil.close(fd)
        self._changed.content(change.path)

    def _rename(self, change: FileChange, status: os.stat_result) -> None:
        source, target = self.directory / change.path, self.directory / change.target
        self._check_folders(change.target)
        there = _status(target)
        is_folder = stat.S_ISDIR(status.st_mode)
        if there is not None and (is_folder or not stat.S_ISREG(there.st_mode)):
            raise StateMismatch(f"{change.path} cannot replace {change.target}")
        if there is not None:
            # Else a power loss could leave neither the old content nor the new one.
            sync_path(source)
        self._close(change.path)
        self._close(change.target)
        if is_folder:
            self._forget_open()
            self._folders.clear()
        fileutil.move(source, target)
        self._changed.names(change.path)
        self._changed.names(change.target)
        self._changed.content(change.target)

    def _remove(self, change: FileChange, status: os.stat_result) -> None:
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder != (change.operation is FileOperation.FOLDER_REMOVED):
            raise StateMismatch(f"{change.path} is {'a' if is_folder else 'not a'} folder")
        full = self.directory / change.path
        if is_folder:
            if fileutil.names_in(full):
                raise StateMismatch(f"the folder is not empty: {change.path}")
            self._folders.discard(change.path)
        self._close(change.path)
        fileutil.unlink(full)
        self._changed.names(change.path)

    def _check_folders(self, path: str) -> None:
        for folder in folders_above(path):
            if folder not in self._folders:
                status = _status(self.directory / folder)
                if status is None or not stat.S_ISDIR(status.st_mode):
                    raise StateMismatch(f"not a folder: {folder}")
                self._folders.add(folder)

    def _close(self, path: str) -> None:
        known = self._open.pop(path, None)
        if known is not None:
            fileutil.close(known[0])

    def _forget_open(self) -> None:
        for path in list(self._open):
            self._close(path)

    # -- to disk ---------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Wait until all changes from before the call are on disk. Any thread.

        Raise StoreFailed if a change may not be on disk; that stays unknown for good. `last` is 0 and all calls fail
        from then on, until a new snapshot has been loaded.
        """
        with self._syncing:
            if self._changed.is_lost:
                raise StoreFailed("an earlier change of state was not flushed")
            files, folders = self._changed.take()
            try:
                for path in files:
                    sync_path(self.directory / path)
                for folder in folders:
                    if (self.directory / folder).is_dir():
                        fileutil.sync_directory(self.directory / folder)
            except BaseException:
                # A retry would succeed wrongly: the system reports only once that it has lost bytes.
                self._changed.is_lost = True
                self._numbers.invalidate()
                raise

    # -- a snapshot ------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Drop all state durably, to load a snapshot in its place.

        Until `end_snapshot` the state is incomplete. Raise StoreFull if nothing was done, StoreFailed if the disk
        failed.
        """
        failpoint("snapshot.before_mark")
        if self.is_whole:  # else an interrupted snapshot has done this already
            # Until the snapshot is complete, a start or a truncation may rebuild queues by the former delay levels.
            put_delay_levels_aside(self.directory)
        topic_deletion_journal.save(self._marker, topic_deletion_journal.read_all_deletions(self.directory))
        failpoint("snapshot.after_mark")
        self.is_whole = False
        self._numbers.invalidate()
        with self._syncing:
            self._changed = _UnsyncedPaths()
        self._forget_open()
        self._folders.clear()
        self._foreign_before = self._foreign.count
        fileutil.remove(expired_queue_offsets.expired_queues_file(self.directory))
        with self._foreign.track():
            for top in (CONFIG, RAYMQ_FOLDER):
                self._empty(top)
        failpoint("snapshot.after_emptied")

    def _empty(self, top: str) -> None:
        for entry in fileutil.entries_of(self.directory / top):
            if is_stored_state(f"{top}/{entry.name}"):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    fileutil.remove_tree(path)
                else:
                    fileutil.unlink(path)
        fileutil.sync_directory(self.directory / top)

    def load(self, part: bytes | memoryview) -> None:
        """Write one part of a snapshot.

        Raises:
            InvalidInput: no snapshot was begun.
            StateMismatch: the part is forged, or not the next one.
            StoreFull, StoreFailed: it could not be written.
        """
        if self.is_whole:
            raise InvalidInput("part", "none before a snapshot begins", len(part))
        with self._foreign.track():
            for path, at, content in read_part(part):
                self._load(path, at, content)
        failpoint("snapshot.after_part")

    def _load(self, path: str, at: int | None, content: bytes) -> None:
        self._check_folders(path)
        full = self.directory / path
        status = _status(full)
        if at is None:
            if status is not None:
                raise StateMismatch(f"the folder exists already: {path}")
            fileutil.make_folder(full, durable=False)
            self._changed.names(path)
            return
        if (-1 if status is None else status.st_size) != (at or -1) or (
            status is not None and not stat.S_ISREG(status.st_mode)
        ):
            raise StateMismatch(f"the bytes of {path} at {at} are not the next ones")
        fileutil.write_at(full, at + len(content), at, content)
        self._changed.content(path)
        self._changed.names(path)

    @property
    def has_resurrected_topics(self) -> bool:
        """Return True if a complete snapshot undoes topic deletions that were applied here."""
        return bool(self._compared_deletions()[0])

    def _compared_deletions(self) -> tuple[list[str], list[tuple[str, int]]]:
        log_min = min((int(path.name) for path in files_of(self.directory / "commitlog")), default=0)
        log_min = max(log_min, self.master_begin)
        return topic_deletion_journal.compare(self.directory, topic_deletion_journal.load(self._marker), log_min)

    def end_snapshot(self, sequence: int) -> None:
        """Complete the snapshot, which contains all changes up to `sequence`, durably.

        Raise InvalidInput if no snapshot was begun. Raise StoreFailed if the disk failed, or StateMismatch if another
        thread has changed files meanwhile; the state stays incomplete then.
        """
        if self.is_whole or sequence < 1:
            raise InvalidInput("sequence", "from 1 on, of a snapshot that was begun", sequence)
        self.sync()
        with self._foreign.track():
            expired_queue_offsets.stage_expired_queues(self.directory)
        for folder in (CONFIG, RAYMQ_FOLDER):
            fileutil.sync_directory(self.directory / folder)
        never, others = self._compared_deletions()
        if never:
            topic_deletion_journal.save(self.directory / RAYMQ_FOLDER / "rebuild_queues", others)
        failpoint("snapshot.before_numbers")
        if not self._foreign.confirm(sequence, since=self._foreign_before):
            raise StateMismatch("other code has changed files during the snapshot")
        self._ring.reset(sequence)
        failpoint("snapshot.before_done")
        fileutil.remove(self._marker)
        self.is_whole = True


class _UnsyncedPaths:
    """The files and folders that have to be synced. Any thread.

    Attributes:
        is_lost: some of the changes may never be on disk.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._lock = threading.Lock()

    def content(self, path: str) -> None:
        """Add a file whose content changed, or a folder that was renamed."""
        with self._lock:
            self._files.add(path)

    def names(self, path: str) -> None:
        """Add the parent folder of a path that was created or removed."""
        with self._lock:
            self._folders.add(path.rpartition("/")[0])

    def take(self) -> tuple[set[str], set[str]]:
        """Return all paths; from now on they count as synced."""
        with self._lock:
            taken = self._files, self._folders
            self._files, self._folders = set(), set()
            return taken


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file, folder or link; None if there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat()
    return None
