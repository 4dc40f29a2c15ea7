"""Commit numbers through a state journal that is compacted often, on a disk that fails once; print what was committed.

    python -m tests.crash.journal_writer DIRECTORY offsets|in_flight KIND NTH ERROR

The process kills itself at the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.journal import state_journal
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from tests.faulty_calls import FaultyCalls, UnsyncedCalls

COMMITS = 60
#: So small that every few commits compact the journal.
COMPACT_BYTES = 60
QUEUE = ("g", "t", 0)


class Opened:
    """A state journal with one table that holds a number."""

    def __init__(self, directory: Path, which: str) -> None:
        self.failures: list[StoreError] = []
        self._table = ConsumerOffsets() if which == "offsets" else InFlightTable()
        folder = directory / "raymq" / "state"
        self.journal = StateJournal(folder, [self._table], writable=True, on_failure=self.failures.append)

    def commit(self, number: int) -> None:
        """Commit `number` as the newest value."""
        if isinstance(self._table, ConsumerOffsets):
            self._table.commit(*QUEUE, number)
        else:
            self._table.deliver(QUEUE, number, {0: InFlightMessage(1, 2, 3, 4)})

    def newest(self) -> int:
        """Return the newest value; 0 if there is none."""
        if isinstance(self._table, ConsumerOffsets):
            return self._table.get(*QUEUE) or 0
        return self._table.queues[QUEUE].next_offset if QUEUE in self._table.queues else 0

    def wait(self) -> None:
        """Wait for the thread that compacts the journal."""
        if self.journal._compaction is not None:
            self.journal._compaction.join()

    def close(self) -> None:
        """Close the journal's file without writing, as a process death does."""
        self.journal.close(compact=False)


def read_newest(directory: Path, which: str) -> int:
    """Return the newest value after the journal is opened again."""
    with contextlib.closing(Opened(directory, which)) as opened:
        return opened.newest()


def commit_numbers(
    directory: Path, which: str, calls: FileCalls
) -> tuple[list[int], list[StoreError], list[StoreError]]:
    """Return the committed numbers, the errors of refused commits, and the failures reported to the store."""
    committed, refused = [], []
    with replaced(UnsyncedCalls()):
        opened = Opened(directory, which)
        opened.commit(1)
    with replaced(calls):
        for number in range(2, COMMITS + 1):
            try:
                opened.commit(number)
                opened.wait()
                committed.append(number)
            except StoreError as error:
                refused.append(error)
    opened.close()
    return committed, refused, opened.failures


if __name__ == "__main__":
    state_journal._COMPACT_BYTES = COMPACT_BYTES  # type: ignore[misc]
    folder, which, kind, nth, error = sys.argv[1:]
    faulty = FaultyCalls(kind, int(nth), int(error), real=UnsyncedCalls())
    with contextlib.redirect_stderr(None):
        committed, refused, failures = commit_numbers(Path(folder), which, faulty)
    print(int(faulty.failed), committed[-1] if committed else 1, len(refused), len(failures), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
