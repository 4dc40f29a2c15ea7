"""Read tables of directories, and ship a master's stream to a replica."""

from __future__ import annotations

import random
from pathlib import Path

import msgpack

from raymq.storage.journal.journal_copy import IncomingJournal
from raymq.storage.journal.journaled_table import JournaledTable
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.delay_offsets import DelayOffsets
from raymq.storage.tables.settings_table import SettingsTable
from raymq.storage.tables.state_tables import StateTables


def state_of(directory: Path) -> dict[str, list[str] | str]:
    """Return the content of all tables of a directory, by class."""
    tables = StateTables()
    StateJournal(StorePaths(directory).state_journal, tables.all(), writable=False)
    return content_of(tables)


def content_of(tables: StateTables) -> dict[str, list[str] | str]:
    """Return the content of all tables, by class."""
    return {type(table).__name__: _content(table) for table in tables.all()}


def _content(table: JournaledTable) -> list[str] | str:
    if isinstance(table, SettingsTable):
        return table.to_json()
    if isinstance(table, DelayOffsets):  # each broker settles the commits whose copies are on its own disk
        return [repr(table.log_end), *map(repr, sorted(table._offsets.items()))]
    return sorted(repr(msgpack.unpackb(msgpack.packb(fields))) for fields in table.snapshot())


def keep_events(store: Store) -> Store:
    """Keep the events of a master's store for replicas; return the store."""
    store.journal.backlog = ReplicationBacklog(store.journal.last)
    return store


def record_contents(master: Store) -> dict[int, object]:
    """Return a growing map from the number of each event of a master to the tables' content after it."""
    contents: dict[int, object] = {}

    def note() -> None:
        contents[master.journal.last] = content_of(master.tables)

    note()
    master.journal.on_append = note
    return contents


def copy_state(master: Store, directory: Path) -> None:
    """Put a copy of the master's journal in the place of that of a closed replica's directory."""
    copy, incoming = master.journal.copy(), IncomingJournal(StorePaths(directory).state_journal)
    try:
        for part in copy.parts():
            assert len(part.encode()) < 1 << 20
            incoming.write(part)
    finally:
        copy.close()
    incoming.sync()
    incoming.install()


class StateShipper:
    """Ships a master's log and events to a replica in the master's order."""

    def __init__(self, master: Store, follower: Store) -> None:
        self._master, self._follower = master, follower

    def step(self, most_bytes: int = 1 << 20, most_events: int = 1024) -> bool:
        """Ship a piece of log or some events; return False if nothing is missing."""
        backlog = self._master.journal.backlog
        assert backlog is not None
        pending = backlog.after(self._follower.journal.last)
        end = min([self._master.max_physical_offset, *(each.log_offset for each in pending[:1])])
        begin = self._follower.received_offset
        if begin < end:
            with self._master.log_slice(begin, min(end, begin + most_bytes)) as part:
                self._follower.append_replicated(part.offset, part.view)
            return True
        due = [each for each in pending[:most_events] if each.log_offset <= end]
        self._follower.append_events(due)
        return bool(due)

    def all(self) -> None:
        """Ship until the replica has all."""
        while self.step():
            pass

    def some(self, random_: random.Random) -> None:
        """Ship a random number of pieces."""
        for _ in range(random_.choice((0, 1, 5, 40))):
            self.step(random_.choice((1, 100, 5_000)), random_.choice((1, 1, 3)))


def ship_all(master: Store, follower: Store) -> None:
    """Ship all log and events in the master's order."""
    StateShipper(master, follower).all()
