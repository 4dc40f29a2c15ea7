"""The replica's side: makes its master's changes of state in its own directory, where no table is open meanwhile."""

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
from raymq.storage.files import fileutil, json_file
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.state import queue_ends, recording, told_deletions
from raymq.storage.state.change_ring import ChangeRing
from raymq.storage.state.changes import FileChange, Operation, StateChange, read_change
from raymq.storage.state.foreign_changes import ForeignChanges
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.snapshot import read_part
from raymq.storage.state.state_files import CONFIG, OURS, folders_above, is_state, levels_aside_of, marker_of

#: So many files are kept open that changes were appended to.
_MOST_OPEN: Final = 32


class Stream(Protocol):
    """Whose numbers and newest changes another one goes on with, in the same process."""

    def hand_over(self) -> tuple[ChangeRing, SequenceFile, ForeignChanges]:
        """Let go of them; what is changed from now on is foreign."""


class StateReplica:
    """The state of one directory. One thread, but for `sync`, `last`, `folded` and `after`.

    Nobody else is to change a state file until it is closed or handed over; where somebody does, `last` is 0 until a
    snapshot has come.
    """

    def __init__(self, directory: Path, *, continues: Stream | None = None) -> None:
        """Find out what is there.

        Args:
            continues: the recorder that the directory had until now, in this process, while it was a master's.

        Raises:
            StoreFull, StoreFailed: that cannot be kept.
        """
        self.directory = directory
        for folder in (CONFIG, OURS):
            fileutil.make_folder(directory / folder)
        if continues is None:
            self._numbers = SequenceFile(directory)
            self._ring = ChangeRing(self._numbers.done)
            self._foreign = ForeignChanges(directory, self._numbers)
            recording.install(directory, self._foreign)
        else:
            self._ring, self._numbers, self._foreign = continues.hand_over()
        #: Where the master's log begins: of topics that were deleted before that it tells no more.
        self.master_begin = 0
        #: How many foreign changes there were when a snapshot began.
        self._foreign_before = 0
        self._marker = marker_of(directory)
        #: Whether a snapshot was begun and not ended: what is here is no state at all, nobody may be elected with it.
        self.is_whole = not self._marker.exists()
        #: By path: a descriptor that appends, and the file's size.
        self._open: OrderedDict[str, tuple[int, int]] = OrderedDict()
        #: Folders that are known to be such, and no links.
        self._folders: set[str] = set()
        self._changed = _Changed()
        self._syncing = threading.Lock()

    @property
    def last(self) -> int:
        """The number of the last change that is here; 0: nobody knows what is here, so that it takes a snapshot."""
        return self._numbers.done if self.is_whole and self._numbers.exact and not self.is_lost else 0

    @property
    def is_lost(self) -> bool:
        """Whether some of what has changed may never be on disk."""
        return self._changed.is_lost

    @property
    def folded(self) -> int:
        """Changes up to this number cannot be had from here any more."""
        return self._ring.folded

    def after(self, sequence: int) -> Sequence[StateChange]:
        """The changes behind a number, at most 1,024 of them; InvalidInput: some of them are folded."""
        return self._ring.after(sequence)

    def hand_over(self) -> tuple[ChangeRing, SequenceFile, ForeignChanges]:
        """The changes and numbers, for who goes on with them; this one is not used any more."""
        self._forget_open()
        if not self.last:
            self._numbers.doubt()
        return self._ring, self._numbers, self._foreign

    def doubt(self) -> None:
        """Somebody else may change files here when nobody looks any more: `last` is 0 until a snapshot has come."""
        self._numbers.doubt()

    def close(self) -> None:
        """Let go of files, where nobody goes on."""
        self._forget_open()
        recording.uninstall(self._foreign)
        self._numbers.close()

    # -- the stream ------------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[StateChange]) -> None:
        """Make changes, the next ones; they survive the death of the process when this returns.

        The log must be here up to their places.

        Raises:
            StateMismatch: one is forged, or does not fit what is here; those before it were made. In the latter case,
                `last` is 0 from now on.
            InvalidInput: nobody knows what is here, or it is not the next one; nothing was done.
            StoreFull, StoreFailed: not all of it was done; `last` is 0 from now on.
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
            read.append(read_change(change.payload))
        self._numbers.begin(changes[-1].sequence)
        done = last
        try:
            with self._foreign.own():
                for change, told in zip(changes, read, strict=True):
                    self._make(told)
                    self._ring.add(change)
                    done = change.sequence
        except BaseException:
            self._numbers.finish(done)
            self._numbers.doubt()
            raise
        self._numbers.finish(done)

    def _make(self, told: FileChange) -> None:
        operation, path = told.operation, told.path
        self._check_folders(path)
        if operation in (Operation.APPENDED, Operation.WRITTEN):
            self._write(told)
            return
        full = self.directory / path
        status = _status(full)
        if operation is Operation.FOLDER_MADE:
            if status is not None:
                raise StateMismatch(f"a folder that is there already: {path}")
            fileutil.make_folder(full, durable=False)
            self._changed.names(path)
        elif operation is Operation.CREATED:
            if status is not None and not stat.S_ISREG(status.st_mode):
                raise StateMismatch(f"no file: {path}")
            self._close(path)
            fileutil.close(fileutil.open_file(full, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if told.empty else 0)))
            self._changed.content(path)
            self._changed.names(path)
        elif status is None or stat.S_ISLNK(status.st_mode):
            raise StateMismatch(f"nothing is there that could be changed: {path}")
        elif operation is Operation.TRUNCATED:
            self._truncate(told, status)
        elif operation is Operation.RENAMED:
            self._rename(told, status)
        else:
            self._remove(told, status)

    def _write(self, told: FileChange) -> None:
        path = told.path
        known = self._open.get(path)
        fd, size = known if known is not None else self._opened(path)
        full = self.directory / path
        if told.at > size or (told.at < size and told.operation is Operation.APPENDED):
            raise StateMismatch(f"{path} ends at {size}, and bytes were to come at {told.at}")
        if told.at < size:
            self._close(path)
            fileutil.write_at(full, told.at + len(told.content), told.at, told.content)
        else:
            self._open.pop(path, None)
            try:
                fileutil.write_all(fd, told.content, full)
            except BaseException:
                fileutil.close(fd)
                raise
            self._open[path] = fd, size + len(told.content)
        self._changed.content(path)

    def _opened(self, path: str) -> tuple[int, int]:
        """A descriptor that appends, and the file's size."""
        full = self.directory / path
        status = _status(full)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise StateMismatch(f"no file that could be written: {path}")
        while len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        self._open[path] = fileutil.open_file(full, os.O_RDWR | os.O_APPEND), status.st_size
        return self._open[path]

    def _truncate(self, told: FileChange, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise StateMismatch(f"no file that could be cut: {told.path}")
        self._close(told.path)
        full = self.directory / told.path
        fd = fileutil.open_file(full, os.O_RDWR)
        try:
            fileutil.truncate(fd, told.at, full)
        finally:
            fileutil.close(fd)
        self._changed.content(told.path)

    def _rename(self, told: FileChange, status: os.stat_result) -> None:
        source, target = self.directory / told.path, self.directory / told.target
        self._check_folders(told.target)
        there = _status(target)
        is_folder = stat.S_ISDIR(status.st_mode)
        if there is not None and (is_folder or not stat.S_ISREG(there.st_mode)):
            raise StateMismatch(f"{told.path} cannot take the place of {told.target}")
        if there is not None:
            # Else a loss of power could leave neither the old content nor the new one.
            sync_path(source)
        self._close(told.path)
        self._close(told.target)
        if is_folder:
            self._forget_open()
            self._folders.clear()
        fileutil.move(source, target)
        self._changed.names(told.path)
        self._changed.names(told.target)
        self._changed.content(told.target)

    def _remove(self, told: FileChange, status: os.stat_result) -> None:
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder != (told.operation is Operation.FOLDER_REMOVED):
            raise StateMismatch(f"{told.path} is {'a' if is_folder else 'no'} folder")
        full = self.directory / told.path
        if is_folder:
            if fileutil.names_in(full):
                raise StateMismatch(f"a folder in which there is something: {told.path}")
            self._folders.discard(told.path)
        self._close(told.path)
        fileutil.unlink(full)
        self._changed.names(told.path)

    def _check_folders(self, path: str) -> None:
        for folder in folders_above(path):
            if folder not in self._folders:
                status = _status(self.directory / folder)
                if status is None or not stat.S_ISDIR(status.st_mode):
                    raise StateMismatch(f"no folder: {folder}")
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
        """Wait until all changes of before the call are on disk. Any thread.

        StoreFailed: they may not be, and nobody will ever know. `last` is 0 and all calls fail from now on, until a
        snapshot brings everything anew.
        """
        with self._syncing:
            if self._changed.is_lost:
                raise StoreFailed("state that had changed was not brought to disk before")
            files, folders = self._changed.take()
            try:
                for path in files:
                    sync_path(self.directory / path)
                for folder in folders:
                    if (self.directory / folder).is_dir():
                        fileutil.sync_directory(self.directory / folder)
            except BaseException:
                # The next call for one of these files would succeed: the system says only once that it has lost bytes.
                self._changed.is_lost = True
                self._numbers.doubt()
                raise

    # -- a snapshot ------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Drop all state, durably: what comes is in its place. Until `end_snapshot` nothing here is whole.

        StoreFull: nothing was done. StoreFailed.
        """
        failpoint("snapshot.before_mark")
        if self.is_whole:  # else that was done when the snapshot was begun which has been broken off
            self._put_levels_aside()
        told_deletions.save(self._marker, told_deletions.each_told(self.directory))
        failpoint("snapshot.after_mark")
        self.is_whole = False
        self._numbers.doubt()
        with self._syncing:
            self._changed = _Changed()
        self._forget_open()
        self._folders.clear()
        self._foreign_before = self._foreign.count
        fileutil.remove(queue_ends.aside_of(self.directory))
        with self._foreign.own():
            for top in (CONFIG, OURS):
                self._empty(top)
        failpoint("snapshot.after_emptied")

    def _put_levels_aside(self) -> None:
        """Until the snapshot is whole queues may be made anew, by a start or a cut: by the delays of before."""
        levels, aside = self.directory / OURS / "delay_levels.json", levels_aside_of(self.directory)
        for source, target in ((levels, aside), (json_file.spare_of(levels), json_file.spare_of(aside))):
            try:
                fileutil.replace(target, fileutil.read_whole(source))
            except FileNotFoundError:
                fileutil.remove(target)

    def _empty(self, top: str) -> None:
        for entry in fileutil.entries_of(self.directory / top):
            if is_state(f"{top}/{entry.name}"):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    fileutil.remove_tree(path)
                else:
                    fileutil.unlink(path)
        fileutil.sync_directory(self.directory / top)

    def load(self, part: bytes | memoryview) -> None:
        """Write a part of a snapshot.

        Raises:
            InvalidInput: none was begun. StateMismatch: it is forged, or not the next one. StoreFull, StoreFailed.
        """
        if self.is_whole:
            raise InvalidInput("part", "none before a snapshot begins", len(part))
        with self._foreign.own():
            for path, at, content in read_part(part):
                self._load(path, at, content)
        failpoint("snapshot.after_part")

    def _load(self, path: str, at: int | None, content: bytes) -> None:
        self._check_folders(path)
        full = self.directory / path
        status = _status(full)
        if at is None:
            if status is not None:
                raise StateMismatch(f"a folder that is there already: {path}")
            fileutil.make_folder(full, durable=False)
            self._changed.names(path)
            return
        if (-1 if status is None else status.st_size) != (at or -1) or (
            status is not None and not stat.S_ISREG(status.st_mode)
        ):
            raise StateMismatch(f"bytes of {path} at {at}, which were not the next ones")
        fileutil.write_at(full, at + len(content), at, content)
        self._changed.content(path)
        self._changed.names(path)

    @property
    def brings_topics_back(self) -> bool:
        """Whether topics were deleted here that never were, as the snapshot says all of which has come."""
        return bool(self._compared_deletions()[0])

    def _compared_deletions(self) -> tuple[list[str], list[tuple[str, int]]]:
        log_min = min((int(path.name) for path in files_of(self.directory / "commitlog")), default=0)
        log_min = max(log_min, self.master_begin)
        return told_deletions.compare(self.directory, told_deletions.load(self._marker), log_min)

    def end_snapshot(self, sequence: int) -> None:
        """The snapshot is whole, with all changes up to this one. It is on disk when this returns.

        InvalidInput: none was begun. StoreFailed: nothing is whole. StateMismatch: nor is it, for somebody else has
        changed files meanwhile.
        """
        if self.is_whole or sequence < 1:
            raise InvalidInput("sequence", "from 1 on, of a snapshot that was begun", sequence)
        self.sync()
        with self._foreign.own():
            queue_ends.put_aside(self.directory)
        for folder in (CONFIG, OURS):
            fileutil.sync_directory(self.directory / folder)
        never, others = self._compared_deletions()
        if never:
            told_deletions.save(self.directory / OURS / "rebuild_queues", others)
        failpoint("snapshot.before_numbers")
        if not self._foreign.know(sequence, since=self._foreign_before):
            raise StateMismatch("somebody else has changed files while the snapshot came")
        self._ring.begin_anew(sequence)
        failpoint("snapshot.before_done")
        fileutil.remove(self._marker)
        self.is_whole = True


class _Changed:
    """What has to be synced. Any thread.

    Attributes:
        is_lost: some of it may never be on disk.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._lock = threading.Lock()

    def content(self, path: str) -> None:
        """Of a file; or of all files in a folder that has another name."""
        with self._lock:
            self._files.add(path)

    def names(self, path: str) -> None:
        """It is there, or is no more."""
        with self._lock:
            self._folders.add(path.rpartition("/")[0])

    def take(self) -> tuple[set[str], set[str]]:
        """All of it: from now on it counts as synced."""
        with self._lock:
            taken = self._files, self._folders
            self._files, self._folders = set(), set()
            return taken


def _status(path: Path) -> os.stat_result | None:
    """Of a file, folder or link; None: there is nothing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat()
    return None
