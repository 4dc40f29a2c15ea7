"""Detect changes of a replica's state files that the replica does not make itself.

When a master becomes a replica, one of its threads may still wait for the disk, with a file that is to replace another
one. When that rename is done, the directory is a replica's. So each change that is not the replica's own is detected,
and the numbers say from before the change on that the content of the files is unknown, until a snapshot has been
loaded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raymq.storage.state import recording_file_calls
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.state_changes import FileChange


class UntrackedWrites:
    """Takes the place of a recorder while changes are not numbered. Any thread.

    It implements `recording_file_calls.ChangeRecorder`.

    Attributes:
        count: how many untracked changes were made.
    """

    def __init__(self, directory: Path, numbers: SequenceFile) -> None:
        self.count = 0
        self._directory = directory
        self._numbers = numbers
        self._lock = threading.Lock()
        self._under_way = 0
        #: The thread that currently makes the replica's own changes.
        self._own: int | None = None

    @property
    def is_replaceable(self) -> bool:
        """Return True: a recorder may take its place."""
        return True

    @property
    def is_stale(self) -> bool:
        """Return True if the state may have lacked something; see `SequenceFile.is_stale`."""
        return self._numbers.is_stale

    @contextlib.contextmanager
    def track(self) -> Iterator[None]:
        """Treat this thread's changes within the `with` as numbered by the replica."""
        self._own = threading.get_ident()
        try:
            yield
        finally:
            self._own = None

    def confirm(self, sequence: int, *, since: int) -> bool:
        """Record that exactly the changes up to `sequence` are in the files.

        Return False if there were untracked changes after `since`.

        Args:
            since: the value of `count` when the files were emptied.
        """
        with self._lock:
            if self.count != since or self._under_way:
                return False
            self._numbers.set(sequence)
            self._numbers.is_stale = False
            return True

    def change(self, call: Callable[[], Any], change_of: Callable[[Any], FileChange | None]) -> Any:  # noqa: ARG002
        """Run `call`; unless it is the replica's own change, invalidate the numbers."""
        if threading.get_ident() == self._own:
            return call()
        current = recording_file_calls.current_recorder(self._directory)
        if current is not None and current is not self:
            return _unnumbered(current, call)
        with self._lock:
            self.count += 1
            self._under_way += 1
            self._numbers.invalidate()
        try:
            return call()
        finally:
            with self._lock:
                self._under_way -= 1
            current = recording_file_calls.current_recorder(self._directory)
            if current is not None and current is not self:
                _unnumbered(current, lambda: None)  # the new recorder relies on the state from before this change

    def before_rename(self, path: str) -> None:
        """Do nothing: there are no snapshots here."""

    def invalidate_numbers(self) -> None:
        """Do nothing: each untracked change invalidates the numbers anyway."""


def _unnumbered(current: recording_file_calls.ChangeRecorder, call: Callable[[], Any]) -> Any:
    """Make a change that the current recorder cannot describe, and invalidate its numbers.

    The path may name another file by now.
    """

    def untracked() -> Any:
        done = call()
        current.invalidate_numbers()
        return done

    return current.change(untracked, lambda _: None)
