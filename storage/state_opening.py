"""Open a store's state journal, and read older and foreign files into its tables."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from raymq.storage import format_1, format_2
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.former_files import has_former_files, is_interrupted, remove_former_files
from raymq.storage.journal.journal_copy import finish_exchange
from raymq.storage.journal.journal_files import SetAsideEvent
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.rocketmq_files import RocketMQFiles
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.state_tables import StateTables

_log = logging.getLogger(__name__)


def open_state(
    paths: StorePaths,
    tables: StateTables,
    on_failure: Callable[[StoreError], None],
    *,
    writable: bool,
    is_replica: bool = False,
) -> tuple[StateJournal, RocketMQFiles]:
    """Read the tables of a directory. The caller closes the journal.

    The content comes from the state journal, and from files of former formats; without both from RocketMQ's. What
    RocketMQ has written since goes into the tables, except into a replica's (`take_foreign_files`).

    Args:
        on_failure: called when the disk has failed so that events might be lost.
        is_replica: only the master's events change tables that have had any.

    Raises:
        StoreCorrupt: there is no journal, and a file and its copy are unreadable.
        StoreFull, StoreFailed, StoreBusy: a file cannot be read or written (now).
    """
    with ExitStack() as opened:
        if writable:
            finish_exchange(paths.state_journal)
        lacks_master_state = writable and is_interrupted(paths)
        if lacks_master_state:
            fileutil.remove_tree(paths.state_journal)
        journal = StateJournal(paths.state_journal, tables.all(), writable=writable, on_failure=on_failure)
        opened.callback(journal.close, compact=False)
        journal.loaded.is_salvaged |= lacks_master_state
        files = RocketMQFiles(paths.config, tables, journal.newest_of)
        if writable:
            for event in journal.loaded.set_aside:
                _save(event, paths.damaged)
        if has_former_files(paths):
            _convert(paths, tables, journal, files, writable=writable)
        elif not is_replica or not journal.has_events:
            take_foreign_files(journal, files, writable=writable)
        tables.topics.end_loading()
        tables.groups.end_loading()
        opened.pop_all()
    return journal, files


def read_tables(paths: StorePaths) -> StateTables:
    """Return the present tables of a directory; change and lock nothing.

    Raises:
        StoreCorrupt, StoreBusy, StoreFailed: as `open_state`.
    """
    tables = StateTables()
    open_state(paths, tables, lambda _: None, writable=False)
    return tables


def _convert(
    paths: StorePaths, tables: StateTables, journal: StateJournal, files: RocketMQFiles, *, writable: bool
) -> None:
    """Bring the files of former formats into the tables, with one snapshot, and remove them.

    Raise as `take_foreign_files`.
    """
    if not tables.recovery_epochs.is_begun:  # else only the removal was interrupted
        if format_1.is_format_1(paths) and not journal.has_events:
            format_1.read(paths, tables)  # its files of RocketMQ's form have no seal
        elif not format_1.is_format_1(paths):
            for table, fields in files.foreign_events(has_tables=journal.has_events):
                table.apply(fields)
        for table, fields in format_2.read_events(paths, tables):
            table.apply(fields)
        if writable:
            failpoint("format.before_snapshot")
            journal.renumber()  # the other replicas of a group may have other values
    if writable:
        files.begin_export()()
        remove_former_files(paths)


def take_foreign_files(journal: StateJournal, files: RocketMQFiles, *, writable: bool) -> None:
    """Bring what RocketMQ has written into the tables.

    Raises:
        StoreCorrupt: there is no journal, and a file and its copy are unreadable.
        StoreFull, StoreFailed, StoreBusy: a file cannot be read or written (now).
    """
    events = files.foreign_events(has_tables=journal.has_events, is_lost=journal.loaded.is_salvaged)
    if not events:
        return
    if journal.has_events:
        journal.change(events)
    else:  # a snapshot, all or nothing: after the first event the files would not be read again
        for table, fields in events:
            table.apply(fields)
    if writable:
        if journal.has_events:
            journal.sync()
        else:
            journal.renumber()
        files.begin_export()()


def _save(event: SetAsideEvent, folder: Path) -> None:
    """Save an event that cannot be applied; a failure is only logged."""
    path = folder / f"state-{event.table}-{event.number}"
    try:
        fileutil.make_folder(folder)
        fileutil.replace(path, json.dumps(asdict(event)).encode())
    except StoreError as error:
        _log.warning("an event that cannot be applied could not be saved: %s", error)
    else:
        _log.error("%s; saved in %s", event, path)
