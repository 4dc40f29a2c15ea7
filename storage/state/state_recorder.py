"""The master's side: number each change of state files, and keep the newest for replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from raymq.storage.state import recording_file_calls
from raymq.storage.state.replication_backlog import BACKLOG_BYTES, ReplicationBacklog
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.state_changes import FileChange, StateChange
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.state.state_snapshot import StateSnapshot
from raymq.storage.state.untracked_writes import UntrackedWrites


class StateRecorder:
    """Records the changes of one store directory from `begin` to `stop`. Any thread.

    A process may have several recorders.
    """

    def __init__(
        self,
        directory: Path,
        log_end: Callable[[], int],
        on_change: Callable[[], None],
        ring: ReplicationBacklog,
        numbers: SequenceFile,
    ) -> None:
        """Keep the arguments; use `begin` to create a recorder."""
        self.directory = directory
        #: Returns the end of the written log; may be replaced, for example when the store has been opened.
        self.log_end = log_end
        self._on_change = on_change
        self._ring = ring
        self._numbers = numbers
        self._log_end = 0
        #: Held during a file call and its numbering, so that the changes have the order of the calls.
        self._lock = threading.RLock()
        self._snapshots: list[StateSnapshot] = []
        #: Receives the changes that are still made after this recorder has stopped.
        self._late: UntrackedWrites | None = None

    @classmethod
    def begin(
        cls,
        directory: Path,
        *,
        log_end: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
        predecessor: StateReplica | None = None,
        most_bytes: int = BACKLOG_BYTES,
    ) -> Self:
        """Start recording. Call it before the store is opened; stop after it is closed.

        If the last changes of the directory are unknown, the numbers continue with one that was never used, so that
        each replica takes a snapshot.

        Args:
            directory: the path with which the store will be opened.
            log_end: returns the end of the log; before the store is open, the end when it was last open. Any thread may
                call it.
            on_change: called after each change, by the thread that made it.
            predecessor: the replica that had the directory until now, in this process: its numbers and changes
                continue, and it must not be used any more.
            most_bytes: how many bytes of changes are kept in memory.

        Raises:
            InvalidInput: the directory has a recorder already.
            StoreFull, StoreFailed: the numbers cannot be stored.
        """
        if predecessor is None:
            numbers = SequenceFile(directory)
            ring = ReplicationBacklog(numbers.done, most_bytes)
        else:
            ring, numbers, _ = predecessor.hand_over()
        recorder = cls(directory, log_end, on_change, ring, numbers)
        try:
            recording_file_calls.install_recorder(directory, recorder)
        except BaseException:
            numbers.close()
            raise
        with recorder._lock:  # so that changes from before the recorder was installed are complete
            if not numbers.is_exact:
                recorder._renumber()
        return recorder

    @property
    def is_replaceable(self) -> bool:
        """Return True after `stop`; see `recording_file_calls.ChangeRecorder`."""
        return self._late is not None

    @property
    def is_stale(self) -> bool:
        """Return True if a power loss may have taken some of the state.

        That is the case if no snapshot has been loaded since.
        """
        return self._numbers.is_stale

    @property
    def last(self) -> int:
        """Return the number of the newest change."""
        return self._ring.last

    @property
    def folded(self) -> int:
        """Return the number up to which changes are no longer in memory.

        A replica that lacks one of these changes takes a snapshot.
        """
        return self._ring.folded

    def after(self, sequence: int) -> Sequence[StateChange]:
        """Return the changes after a number, at most 1,024 of them.

        Raise InvalidInput if some of them were dropped from memory.
        """
        return self._ring.after(sequence)

    def retain(self, sequence: int | None) -> None:
        """Keep all changes after this number in memory, up to 512 MiB.

        A replica that fetches a snapshot or the log needs them. With None no replica needs any.
        """
        self._ring.retain(sequence)

    def snapshot(self) -> StateSnapshot:
        """Return a snapshot of all state at this moment; the caller closes it.

        Changes continue meanwhile. Raise StoreBusy or StoreFailed if the files cannot be listed.
        """
        with self._lock:
            taken = StateSnapshot(self.directory, self.last, self._lock, self._snapshots.remove)
            self._snapshots.append(taken)
            return taken

    def stop(self) -> None:
        """Stop recording. May be called again, and after `hand_over`."""
        if self._late is None:
            recording_file_calls.uninstall_recorder(self.hand_over()[2])
            self._numbers.close()

    def hand_over(self) -> tuple[ReplicationBacklog, SequenceFile, UntrackedWrites]:
        """Stop, and return the changes and numbers: `StateReplica(directory, predecessor=this)`.

        Changes that other threads make from now on are untracked.
        """
        with self._lock:
            if self._late is None:
                self._late = UntrackedWrites(self.directory, self._numbers)
                recording_file_calls.install_recorder(self.directory, self._late)
            return self._ring, self._numbers, self._late

    # -- what file calls tell --------------------------------------------------------------------------------------

    def change(self, call: Callable[[], Any], change_of: Callable[[Any], FileChange | None]) -> Any:
        """Run `call` and number the change; see `recording_file_calls.ChangeRecorder`."""
        with self._lock:
            late = self._late
            done, is_change = (None, False) if late is not None else self._numbered(call, change_of)
        if late is not None:
            return late.change(call, change_of)
        if is_change:
            self._on_change()
        return done

    def _numbered(self, call: Callable[[], Any], change_of: Callable[[Any], FileChange | None]) -> tuple[Any, bool]:
        """Run `call`, and return its result and whether it was a change.

        The caller holds the lock.
        """
        last = self._ring.last
        self._numbers.begin(last + 1)
        try:
            done = call()
        except OSError:
            self._numbers.begin(self._ring.last)
            raise
        try:
            change = change_of(done)
            if change is not None:
                self._log_end = max(self._log_end, self.log_end())
                self._ring.add(StateChange(last + 1, self._log_end, change.encode()))
                self._numbers.finish(last + 1)
            else:
                self._numbers.begin(self._ring.last)
        except BaseException:
            self._renumber()  # the change was made but not recorded
            raise
        return done, change is not None

    def before_rename(self, path: str) -> None:
        """Save the file's content for open snapshots; see `recording_file_calls.ChangeRecorder`."""
        for snapshot in self._snapshots:
            snapshot.preserve(path)

    def invalidate_numbers(self) -> None:
        """Renumber, unless stopped; see `recording_file_calls.ChangeRecorder`."""
        if self._late is None:
            self._renumber()

    def _renumber(self) -> None:
        """Continue with an unused number, so that all replicas take a snapshot."""
        sequence = self._numbers.next_unused()
        self._numbers.set(sequence)
        self._ring.reset(sequence)
