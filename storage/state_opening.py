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
from raymq.storage.former_files import remove_former_files
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

    The content comes from the state journal; without one from the files of format 1, or from RocketMQ's. What
    RocketMQ has written since goes into the tables, and so do files of format 2. A replica's tables stay empty: its
    master changes their files.

    Args:
        on_failure: called when the disk has failed so that events might be lost.

    Raises:
        StoreCorrupt: there is no journal, and a file and its copy are unreadable.
        StoreFull, StoreFailed, StoreBusy: a file cannot be read or written (now).
    """
    with ExitStack() as opened:
        folder = paths.no_tables.state_journal if is_replica else paths.state_journal
        journal = StateJournal(folder, tables.all(), writable=writable, on_failure=on_failure)
        opened.callback(journal.close, compact=False)
        files = RocketMQFiles(paths.config, tables, journal.newest_of)
        if not is_replica:
            _fill(paths, tables, journal, files, writable=writable)
            tables.topics.end_loading()
            tables.groups.end_loading()
        opened.pop_all()
    return journal, files


def read_tables(paths: StorePaths) -> StateTables:
    """Return the tables of a directory as they are now; change nothing, and take no lock.

    Raises:
        StoreCorrupt, StoreBusy, StoreFailed: as `open_state`.
    """
    tables = StateTables()
    open_state(paths, tables, lambda _: None, writable=False)
    return tables


def _fill(
    paths: StorePaths, tables: StateTables, journal: StateJournal, files: RocketMQFiles, *, writable: bool
) -> None:
    loaded = journal.loaded
    if writable:
        for event in loaded.set_aside:
            _save(event, paths.damaged)
    has_events, is_format_1 = journal.has_events, format_1.is_format_1(paths)
    if is_format_1:
        # Its files of RocketMQ's form have no seal. Those that a conversion has left behind are older than the journal.
        foreign = []
        if not has_events:
            format_1.read(paths, tables)
    else:
        foreign = list(files.foreign_events(has_tables=has_events, is_lost=loaded.is_salvaged))
    former = format_2.read_events(paths, tables)
    if has_events:
        journal.change([*foreign, *former[:-1]])
        if foreign or former:
            journal.sync()
        if former:  # the last event says that the others are there
            failpoint("format.before_last_event")
            journal.change(former[-1:])
            journal.sync()
    elif is_format_1 or foreign or former:
        # A snapshot, all or nothing: after the first event the files would not be read again.
        for table, fields in [*foreign, *former]:
            table.apply(fields)
        if writable:
            failpoint("format.before_snapshot")
            journal.compact()
    if writable:
        if is_format_1 or foreign:
            files.begin_export()()
        remove_former_files(paths)


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
