"""Commit offsets through a journal that is rewritten often, on a disk that fails once; print what was committed.

    python -m tests.crash.journal_writer DIRECTORY progress|in_flight KIND NTH ERROR

The process kills itself at the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables import consumer_offset_store as progress_module
from raymq.storage.tables import in_flight_messages as in_flight_module
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from tests.faulty_calls import FaultyCalls, UnsyncedCalls

COMMITS = 12
#: So small that about every second commit rewrites the journal.
REWRITE_BYTES = 60
QUEUE = ("g", "t", 0)


def open_table(directory: Path, which: str, failures: list[StoreError]) -> ConsumerOffsetStore | InFlightTable:
    """Open the table whose journal is tested."""
    if which == "progress":
        return ConsumerOffsetStore(
            directory / "config", directory / "journal", writable=True, on_failure=failures.append
        )
    return InFlightTable(directory / "journal", writable=True, on_failure=failures.append)


def commit(opened: ConsumerOffsetStore | InFlightTable, number: int) -> None:
    """Commit `number` as the newest value."""
    if isinstance(opened, ConsumerOffsetStore):
        opened.consumer_offsets.commit(*QUEUE, number)
    else:
        opened.deliver(QUEUE, number, {0: InFlightMessage(1, 2, 3, 4)})


def close_without_writing(opened: ConsumerOffsetStore | InFlightTable) -> None:
    """Close the journal's file without writing, as a process death does."""
    opened._wait()
    journal = opened.journal if isinstance(opened, ConsumerOffsetStore) else opened._journal
    journal.close()


def read_newest(directory: Path, which: str) -> int:
    """Return the newest value after the store is opened again."""
    opened = open_table(directory, which, [])
    try:
        return newest_number(opened)
    finally:
        close_without_writing(opened)


def newest_number(opened: ConsumerOffsetStore | InFlightTable) -> int:
    """Return the newest value; 0 if there is none."""
    if isinstance(opened, ConsumerOffsetStore):
        return opened.consumer_offsets.get(*QUEUE) or 0
    return opened.queues[QUEUE].next_offset if QUEUE in opened.queues else 0


def commit_numbers(
    directory: Path, which: str, calls: FaultyCalls
) -> tuple[list[int], list[StoreError], list[StoreError]]:
    """Return the committed numbers, the errors of refused commits, and the failures reported to the store."""
    committed, refused, failures = [], [], []
    with replaced(UnsyncedCalls()):
        opened = open_table(directory, which, failures)
        commit(opened, 1)
    with replaced(calls):
        for number in range(2, COMMITS + 1):
            try:
                commit(opened, number)
                opened._wait()  # another thread writes it
                committed.append(number)
            except StoreError as error:
                refused.append(error)
    close_without_writing(opened)
    return committed, refused, failures


if __name__ == "__main__":
    progress_module._FOLD_BYTES = in_flight_module._REWRITE_BYTES = REWRITE_BYTES  # type: ignore[misc]
    folder, which, kind, nth, error = sys.argv[1:]
    faulty = FaultyCalls(kind, int(nth), int(error), real=UnsyncedCalls())
    with contextlib.redirect_stderr(None):
        committed, refused, failures = commit_numbers(Path(folder), which, faulty)
    print(int(faulty.failed), committed[-1] if committed else 1, len(refused), len(failures), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
