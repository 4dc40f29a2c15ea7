"""Open single tables of the state journal, for tests without a store."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from raymq.storage.journal.journal_frames import encode_frame
from raymq.storage.journal.journaled_table import JournaledTable
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store

T = TypeVar("T", bound=JournaledTable)


def open_table(directory: Path, table: T, *, writable: bool = True) -> T:
    """Open the journal of a store directory with one table, as a restart after a kill would; return the table.

    The journal is not closed: the events are in the file after each change.
    """
    StateJournal(directory / "raymq" / "state", [table], writable=writable)
    return table


def open_tables(directory: Path, *tables: JournaledTable) -> StateJournal:
    """Open the journal of a store directory with some tables, and return it."""
    return StateJournal(directory / "raymq" / "state", tables, writable=True)


def append_frames(path: Path, *entries: tuple[object, ...]) -> None:
    """Append entries to a file of frames, as journals of former formats were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for entry in entries:
            file.write(encode_frame(entry))


def wait_for_compaction(store: Store) -> None:
    """Wait until no thread of the store compacts its state journal."""
    thread = store._parts.journal._compaction
    if thread is not None:
        thread.join()
