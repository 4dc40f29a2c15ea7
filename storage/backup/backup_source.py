"""The content of a backup: the log up to an offset, and the state then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

from raymq.storage.backup.backup_state import STATE_FOLDERS, is_backup_path, parts_of
from raymq.storage.closeable import Closeable
from raymq.storage.directory_format import DirectoryFormat, read_format
from raymq.storage.errors import InvalidInput
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.journal.journal_copy import is_exchanging
from raymq.storage.store_paths import StorePaths, take_lock
from raymq.storage.tables.broker_identity import BrokerIdentity, read_broker_identity

_LOOK_BYTES: Final = 16 << 20


class BackupSource(Protocol):
    """A store directory at one moment. One thread.

    Attributes:
        directory: the directory whose log files are read.
        broker: the broker that the directory belongs to.
        format: the format of its files.
        log_begin, log_end, file_bytes: the bounds of the log, and the size of its files.
        state_bytes: about how large the state is.
    """

    directory: Path
    broker: BrokerIdentity
    format: DirectoryFormat
    log_begin: int
    log_end: int
    file_bytes: int
    state_bytes: int

    def parts(self) -> Iterator[bytes]:
        """Iterate over the state in parts for `backup_state.read_part`."""

    def hold(self, log_from: int) -> None:
        """Keep the log from this offset on, and release the log before it.

        Raise BackupFailed if the log is no longer held.
        """

    def check(self) -> None:
        """Raise BackupFailed unless everything read so far is from that one moment."""


class StoppedDirectory(Closeable):
    """A `BackupSource` of a directory that no process has open.

    The lock is held until the end of the `with`.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            FormatTooNew: a newer RayMQ has written there.
            StoreLocked: a process has it open.
            InvalidInput: there is no store, or one that has to be opened first.
        """
        self.directory = directory
        paths = StorePaths(directory)
        if not paths.commit_log.is_dir():
            raise InvalidInput("directory", "a store directory", str(directory))
        with ExitStack() as resources:
            resources.callback(take_lock(paths).release)
            begun = (paths.ordered_cut, paths.rebuild_queues, paths.expired_queues, paths.restoring)
            if is_exchanging(paths.state_journal) or any(half.exists() for half in begun):
                remedy = "let its broker start once, or restore it again"
                problem = "a complete store, not one with an unfinished restoration or change of replicas"
                raise InvalidInput("directory", problem, str(directory), remedy=remedy)
            files = files_of(paths.commit_log)
            self.broker = read_broker_identity(directory / "raymq" / "broker.json")
            self.format = read_format(directory)
            self.log_begin = int(files[0].name) if files else 0
            self.file_bytes = files[0].stat().st_size if files else 0
            self.log_end = next(
                (int(path.name) + used for path in reversed(files) if (used := _used(path))), self.log_begin
            )
            self._state_files = list(_state_files(directory))
            self.state_bytes = sum((directory / path).stat().st_size for path in self._state_files)
            self._resources = resources.pop_all()

    def parts(self) -> Iterator[bytes]:
        """Iterate over the state; see `BackupSource`."""
        for path in self._state_files:
            yield from parts_of(path, fileutil.read_whole(self.directory / path))

    def hold(self, log_from: int) -> None:
        """Do nothing: the lock keeps other processes from removing log files."""

    def check(self) -> None:
        """Do nothing: while the lock is held, no other process changes the directory."""

    def close(self) -> None:
        """Release the lock; may be called twice."""
        self._resources.close()


def _state_files(directory: Path, below: str = "") -> Iterator[str]:
    """Return the paths of all files of the state, also of former versions."""
    for entry in fileutil.entries_of(directory / below):
        path = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if below or entry.name in STATE_FOLDERS:
                yield from _state_files(directory, f"{path}/")
        elif entry.is_file(follow_symlinks=False) and is_backup_path(path):
            yield path


def _used(path: Path) -> int:
    """Return the offset after a file's last non-zero byte; 0 if all are zero."""
    fd = fileutil.open_to_read(path)
    try:
        end = os.fstat(fd).st_size
        while end > 0:
            begin = max(0, end - _LOOK_BYTES)
            if found := len(os.pread(fd, end - begin, begin).rstrip(b"\0")):
                return begin + found
            end = begin
    finally:
        fileutil.close(fd)
    return 0
