"""What is backed up: the log up to a place, and the state of the moment when it ended there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

from raymq.storage.closing import Closing
from raymq.storage.directory_format import DirectoryFormat, read_format
from raymq.storage.errors import InvalidInput
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.paths import Paths, take_lock
from raymq.storage.state import queue_ends
from raymq.storage.state.frozen_state import FrozenState
from raymq.storage.state.state_files import marker_of
from raymq.storage.tables.broker_identity import BrokerOf, read_broker

_LOOK_BYTES: Final = 16 << 20


class Source(Protocol):
    """A directory at one moment. One thread.

    Attributes:
        directory: whose log files are read.
        broker: whose it is.
        format: of its files.
        log_begin, log_end, file_bytes: the log, and the size of its files.
        state_bytes: about how large the state is.
    """

    directory: Path
    broker: BrokerOf
    format: DirectoryFormat
    log_begin: int
    log_end: int
    file_bytes: int
    state_bytes: int

    def parts(self) -> Iterator[bytes]:
        """The state, for `read_frozen`."""

    def hold(self, log_from: int) -> None:
        """Of the log only what lies there and behind is still needed; BackupFailed: nothing is held any more."""

    def check(self) -> None:
        """All that was read until now was of that one moment; BackupFailed: that is not sure."""


class StoppedDirectory(Closing):
    """A directory that nobody has open: its lock is held until the end of the `with`. A `Source`."""

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            FormatTooNew: a newer RayMQ has written there. StoreLocked: a process has it open.
            InvalidInput: there is no store, or one that has to be opened first.
        """
        self.directory = directory
        paths = Paths(directory)
        if not paths.commit_log.is_dir():
            raise InvalidInput("directory", "a store directory", str(directory))
        with ExitStack() as resources:
            resources.callback(take_lock(paths).release)
            begun = paths.ordered_cut, marker_of(directory), paths.rebuild_queues, queue_ends.aside_of(directory)
            for half in (*begun, paths.restoring):
                if half.exists():
                    remedy = "let its broker start once, or restore it again"
                    raise InvalidInput(
                        "directory", f"one that is whole: {half.name} is there", str(directory), remedy=remedy
                    )
            files = files_of(paths.commit_log)
            self.broker = read_broker(directory / "raymq" / "broker.json")
            self.format = read_format(directory)
            self.log_begin = int(files[0].name) if files else 0
            self.file_bytes = files[0].stat().st_size if files else 0
            self.log_end = next(
                (int(path.name) + used for path in reversed(files) if (used := _used(path))), self.log_begin
            )
            self._frozen = FrozenState(directory, lambda: self.log_end)
            resources.callback(self._frozen.close)
            self.state_bytes = self._frozen.total_bytes
            self._resources = resources.pop_all()

    def parts(self) -> Iterator[bytes]:
        """See `Source`."""
        return self._frozen.parts()

    def hold(self, log_from: int) -> None:
        """See `Source`: nobody else is here."""

    def check(self) -> None:
        """See `Source`: the lock is held."""

    def close(self) -> None:
        """Give the lock back; may be called twice."""
        self._resources.close()


def _used(path: Path) -> int:
    """One past the last byte of a file that is not zero; 0: all are."""
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
