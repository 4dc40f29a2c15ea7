"""Changes of a replica's state files that the replica does not make itself: nobody numbers them.

A master's office may end while one of its threads waits for the disk, with a file that is to take another one's place.
When that is done the directory is a replica's. So whoever else changes a state file there is seen, and from before the
change on the numbers say that nobody knows what is in the files, until a snapshot has come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raymq.storage.state import recording
from raymq.storage.state.changes import FileChange
from raymq.storage.state.sequence_file import SequenceFile


class ForeignChanges:
    """Stands where a recorder stands while nobody numbers changes (`recording.Recorder`). Any thread.

    Attributes:
        count: how many there were.
    """

    def __init__(self, directory: Path, numbers: SequenceFile) -> None:
        self.count = 0
        self._directory = directory
        self._numbers = numbers
        self._lock = threading.Lock()
        self._under_way = 0
        #: The thread that makes the replica's own changes now.
        self._own: int | None = None

    @property
    def gives_way(self) -> bool:
        """See `recording.Recorder`: a recorder takes its place."""
        return True

    @property
    def is_doubtful(self) -> bool:
        """See `recording.Recorder`."""
        return self._numbers.doubtful

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """What this thread changes until the end of the `with` is numbered by the replica."""
        self._own = threading.get_ident()
        try:
            yield
        finally:
            self._own = None

    def know(self, sequence: int, *, since: int) -> bool:
        """Say that just the changes up to `sequence` are in the files; False: there were foreign ones behind `since`.

        Args:
            since: `count` when the files were emptied.
        """
        with self._lock:
            if self.count != since or self._under_way:
                return False
            self._numbers.set(sequence)
            self._numbers.doubtful = False
            return True

    def change(self, call: Callable[[], Any], told: Callable[[Any], FileChange | None]) -> Any:  # noqa: ARG002
        """See `recording.Recorder`."""
        if threading.get_ident() == self._own:
            return call()
        current = recording.recorder_of(self._directory)
        if current is not None and current is not self:
            return _unnumbered(current, call)
        with self._lock:
            self.count += 1
            self._under_way += 1
            self._numbers.doubt()
        try:
            return call()
        finally:
            with self._lock:
                self._under_way -= 1
            current = recording.recorder_of(self._directory)
            if current is not None and current is not self:
                _unnumbered(current, lambda: None)  # it counts on what was there

    def moving(self, path: str) -> None:
        """See `recording.Recorder`."""

    def lose_count(self) -> None:
        """See `recording.Recorder`: a change that nobody numbers says so anyway."""


def _unnumbered(current: recording.Recorder, call: Callable[[], Any]) -> Any:
    """Make a change that the one who numbers them now cannot tell: what has the path may be another file by now."""

    def made() -> Any:
        done = call()
        current.lose_count()
        return done

    return current.change(made, lambda _: None)
