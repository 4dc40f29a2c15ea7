"""Read the delay levels with which a replica's queues have to agree."""

from __future__ import annotations

from pathlib import Path

from raymq.storage.files import fileutil, json_file
from raymq.storage.state.state_files import RAYMQ_FOLDER, saved_delay_levels, snapshot_marker
from raymq.storage.state.topic_deletion_journal import JournalTail
from raymq.storage.tables.delay_level_history import read_delay_tables


def delay_levels_of_replica(directory: Path) -> list[tuple[int, str]]:
    """Return the tables of delay levels and where each begins, as the master's journal has them.

    Until a master has converted its directory of format 2, its file counts. An interrupted snapshot may have no delay
    levels yet, or other ones; then those from before it count.

    Raise StoreBusy or StoreFailed if they cannot be read now.
    """
    if snapshot_marker(directory).exists():
        return read_delay_tables(saved_delay_levels(directory))
    tail = JournalTail(directory)
    tail.read()
    return tail.delay_levels.saved or read_delay_tables(directory / RAYMQ_FOLDER / "delay_levels.json")


def put_delay_levels_aside(directory: Path) -> None:
    """Save the delay levels in a file of their own, because a snapshot will replace the journal.

    Raise StoreFull, StoreFailed or StoreBusy if that is not possible now.
    """
    aside = saved_delay_levels(directory)
    fileutil.remove(json_file.backup_path_of(aside))
    tables = [list(each) for each in delay_levels_of_replica(directory)]
    fileutil.replace(aside, json_file.encode({"tables": tables}).encode())
