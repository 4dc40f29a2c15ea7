"""The master's side: numbers each change of its state files as it is made, and keeps the newest ones for replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from raymq.storage.state import recording
from raymq.storage.state.change_ring import RING_BYTES, ChangeRing
from raymq.storage.state.changes import FileChange, StateChange
from raymq.storage.state.foreign_changes import ForeignChanges
from raymq.storage.state.replica import StateReplica
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.snapshot import StateSnapshot


class StateRecorder:
    """Sees the changes of one store directory from `begin` to `stop`; a process may have several. Any thread."""

    def __init__(
        self,
        directory: Path,
        log_end: Callable[[], int],
        on_change: Callable[[], None],
        ring: ChangeRing,
        numbers: SequenceFile,
    ) -> None:
        """See `begin`."""
        self.directory = directory
        #: The end of what is written of the log; may be replaced, as when the store has been opened.
        self.log_end = log_end
        self._on_change = on_change
        self._ring = ring
        self._numbers = numbers
        self._log_end = 0
        #: The order of the changes is that of the calls: both are one.
        self._lock = threading.RLock()
        self._snapshots: list[StateSnapshot] = []
        #: Once it is stopped: whom those tell that are late.
        self._late: ForeignChanges | None = None

    @classmethod
    def begin(
        cls,
        directory: Path,
        *,
        log_end: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
        continues: StateReplica | None = None,
        most_bytes: int = RING_BYTES,
    ) -> Self:
        """Record from now on; to be called before the store is opened, and stopped after it is closed.

        Where it is not known what has changed here last, the numbers go on with one that nobody ever had, so that each
        replica takes a snapshot.

        Args:
            directory: as the store will be opened.
            log_end: where the log ends; before the store is open, where it ended when it was. Called by any thread.
            on_change: called after each change, by the thread that made it.
            continues: the replica that the directory was until now, in this process: its numbers and changes go on,
                and it must not be used any more.
            most_bytes: so many bytes of changes are kept in memory.

        Raises:
            InvalidInput: the directory is recorded already. StoreFull, StoreFailed: its numbers cannot be kept.
        """
        if continues is None:
            numbers = SequenceFile(directory)
            ring = ChangeRing(numbers.done, most_bytes)
        else:
            ring, numbers, _ = continues.hand_over()
        recorder = cls(directory, log_end, on_change, ring, numbers)
        try:
            recording.install(directory, recorder)
        except BaseException:
            numbers.close()
            raise
        with recorder._lock:  # behind whatever was changed before it was there
            if not numbers.exact:
                recorder._renumber()
        return recorder

    @property
    def gives_way(self) -> bool:
        """See `recording.Recorder`."""
        return self._late is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether a loss of power may have taken some of the state that is here: no snapshot has come since."""
        return self._numbers.doubtful

    @property
    def last(self) -> int:
        """The number of the newest change."""
        return self._ring.last

    @property
    def folded(self) -> int:
        """Changes up to this number cannot be had any more: who lacks one takes a snapshot."""
        return self._ring.folded

    def after(self, sequence: int) -> Sequence[StateChange]:
        """The changes behind a number, at most 1,024 of them; InvalidInput: some of them are folded."""
        return self._ring.after(sequence)

    def hold(self, sequence: int | None) -> None:
        """Keep all behind this number for a replica that fetches a snapshot or the log, up to 512 MiB; None: none."""
        self._ring.hold(sequence)

    def snapshot(self) -> StateSnapshot:
        """All state as it is now, while changes go on; the caller closes it. StoreBusy, StoreFailed."""
        with self._lock:
            taken = StateSnapshot(self.directory, self.last, self._lock, self._snapshots.remove)
            self._snapshots.append(taken)
            return taken

    def stop(self) -> None:
        """See nothing any more. May be called again, and behind `hand_over`."""
        if self._late is None:
            recording.uninstall(self.hand_over()[2])
            self._numbers.close()

    def hand_over(self) -> tuple[ChangeRing, SequenceFile, ForeignChanges]:
        """Stop, and give the changes and numbers to who goes on: `StateReplica(directory, continues=this)`.

        What others change from now on is foreign.
        """
        with self._lock:
            if self._late is None:
                self._late = ForeignChanges(self.directory, self._numbers)
                recording.install(self.directory, self._late)
            return self._ring, self._numbers, self._late

    # -- what file calls tell --------------------------------------------------------------------------------------

    def change(self, call: Callable[[], Any], told: Callable[[Any], FileChange | None]) -> Any:
        """See `recording.Recorder`."""
        with self._lock:
            late = self._late
            done, is_told = (None, False) if late is not None else self._numbered(call, told)
        if late is not None:
            return late.change(call, told)
        if is_told:
            self._on_change()
        return done

    def _numbered(self, call: Callable[[], Any], told: Callable[[Any], FileChange | None]) -> tuple[Any, bool]:
        """What the call returned, and whether that was a change; the lock is held."""
        last = self._ring.last
        self._numbers.begin(last + 1)
        try:
            done = call()
        except OSError:
            self._numbers.begin(self._ring.last)
            raise
        try:
            made = told(done)
            if made is not None:
                self._log_end = max(self._log_end, self.log_end())
                self._ring.add(StateChange(last + 1, self._log_end, made.encode()))
                self._numbers.finish(last + 1)
            else:
                self._numbers.begin(self._ring.last)
        except BaseException:
            self._renumber()  # it was made, and is not among the changes
            raise
        return done, made is not None

    def moving(self, path: str) -> None:
        """See `recording.Recorder`."""
        for snapshot in self._snapshots:
            snapshot.keep(path)

    def lose_count(self) -> None:
        """See `recording.Recorder`."""
        if self._late is None:
            self._renumber()

    def _renumber(self) -> None:
        """All replicas need a snapshot."""
        sequence = self._numbers.next_of_nobody()
        self._numbers.set(sequence)
        self._ring.begin_anew(sequence)
