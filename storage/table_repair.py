"""Rebuild tables of a store directory if they and their backup copies are unreadable.

If only the file is broken, its backup copy (`.bak`) is used and the log reports that. This module handles the rest:
each such file is set aside, and replaced by a table that is rebuilt from other files of the directory. RocketMQ's files
of settings and offsets matter only in a directory without a state journal; otherwise they are copies, and a start
writes them again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from raymq.storage import store_paths as layout
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.directory_format import check_format, upgrade_format
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreError, StoreFailed
from raymq.storage.files import fileutil, json_file
from raymq.storage.journal import journal_files
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.state_opening import open_state
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.broker_identity import read_port_epoch
from raymq.storage.tables.dynamic_config import read_broker_config
from raymq.storage.tables.group_config import GroupConfig, GroupConfigs
from raymq.storage.tables.offset_files import read_consumer_offsets, read_delay_offsets
from raymq.storage.tables.request_mode import read_modes
from raymq.storage.tables.state_tables import StateTables
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs

_RETRY_PREFIX: Final = "%RETRY%"
#: How many changes that cannot be applied are named.
_NAMED_CHANGES: Final = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokenTable:
    """A table that cannot be read.

    Attributes:
        file: its path; the backup copy beside it is broken or missing, too.
        problem: why it cannot be read.
        rebuilt: the content that a repair puts in its place.
        lost: the data that no file has any more.
        set_aside: the paths to which a repair moved the broken files; empty before the repair.
    """

    file: str
    problem: str
    rebuilt: str
    lost: str
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Table:
    """How one file is read and rebuilt, and which data a rebuild loses.

    `make` returns the rebuilt content (None: no file) and a description of it.
    """

    path: Path
    read: Callable[[], object]
    make: Callable[[], tuple[Mapping[str, Any] | None, str]]
    lost: str


def find_broken(directory: str | os.PathLike[str]) -> list[BrokenTable]:
    """Return the tables that prevent an opening, and how they can be rebuilt. Change nothing.

    Also return the state journal if changes in it cannot be read: that does not prevent an opening, but they are lost.

    Raises:
        InvalidInput: the directory is no store directory.
        FormatTooNew: a newer RayMQ has written there.
    """
    paths = _paths(directory)
    state = _state_damage(paths)
    return [broken for broken, _, _ in _broken(paths)] + ([] if state is None else [state])


def repair(directory: str | os.PathLike[str]) -> list[BrokenTable]:
    """Move broken tables to `raymq/damaged/`, rebuild them and return what was done.

    Raises:
        InvalidInput: the directory is no store directory.
        FormatTooNew: a newer RayMQ has written there.
        StoreLocked: a broker has it open.
        StoreFull, StoreFailed: the disk refused a write; tables that were not repaired are unchanged.
    """
    paths = _paths(directory)
    lock = layout.take_lock(paths)
    try:
        tables = [_repaired(paths, *each) for each in _broken(paths)]
        state = _state_damage(paths)
        return tables if state is None else [*tables, _repaired_state(paths, state)]
    finally:
        lock.release()


def _paths(directory: str | os.PathLike[str]) -> StorePaths:
    paths = StorePaths(Path(directory))
    # A store without messages has no log; a store that crashed before it wrote a table has neither folder.
    if not any(folder.is_dir() for folder in (paths.commit_log, paths.config, paths.state.parent)):
        raise InvalidInput("directory", "a store directory", str(directory))
    check_format(paths.root)
    return paths


def _broken(paths: StorePaths) -> list[tuple[BrokenTable, _Table, Mapping[str, Any] | None]]:
    found = []
    for table in _tables(paths):
        problem = _problem(table)
        if problem is not None:
            content, rebuilt = table.make()
            found.append((BrokenTable(str(table.path), problem, rebuilt, table.lost), table, content))
    return found


def _problem(table: _Table) -> str | None:
    """Return why a table and its backup copy cannot be read; None if one can."""
    try:
        table.read()
    except StoreCorrupt as error:
        return error.reason
    except StoreFailed as error:  # the disk cannot read it: an operator who starts a repair knows that this persists
        return str(error)
    return None


def _repaired(paths: StorePaths, broken: BrokenTable, table: _Table, content: Mapping[str, Any] | None) -> BrokenTable:
    aside = []
    fileutil.make_folder(paths.damaged)
    for path in (table.path, json_file.backup_path_of(table.path)):
        if path.exists():
            copy = _free_name(paths.damaged / path.name)
            _set_aside(path, copy)
            aside.append(str(copy))
    for path in (table.path, json_file.backup_path_of(table.path)):
        if content is None:
            fileutil.remove(path)
        else:  # one after the other: if the disk refuses a write, the other file is unchanged
            fileutil.replace(path, json_file.encode(content).encode())
    return BrokenTable(broken.file, broken.problem, broken.rebuilt, broken.lost, tuple(aside))


def _state_damage(paths: StorePaths) -> BrokenTable | None:
    """Return what of the state journal cannot be read.

    A start does without changes that are lost. A file that the disk cannot read prevents it.
    """
    try:
        loaded = StateJournal(paths.state_journal, StateTables().all(), writable=False).loaded
    except StoreFailed as error:
        reasons, lost = [str(error)], "the changes in that file, unless another one has them"
    else:
        reasons = [f"{loaded.lost} changes are missing"] if loaded.lost else []
        reasons += [str(each) for each in loaded.set_aside[:_NAMED_CHANGES]]
        lost = f"{loaded.lost + len(loaded.set_aside)} changes of topics, groups, offsets or other tables"
    if not reasons:
        return None
    rebuilt = "all changes that can be read"
    if paths.replica.exists():
        rebuilt, lost = "the replica takes a copy of its master's journal", f"only if no other replica has it: {lost}"
    return BrokenTable(str(paths.state_journal), "; ".join(reasons), rebuilt, lost)


def _repaired_state(paths: StorePaths, broken: BrokenTable) -> BrokenTable:
    """Copy the state journal's files, and write a snapshot of what is readable.

    In a replica's directory write none: an election takes a journal with gaps only if there is no other, but cannot
    see what a snapshot lacks.
    """
    upgrade_format(paths.root)
    folder = _free_name(paths.damaged / paths.state_journal.name)
    fileutil.make_folder(folder)
    for path in fileutil.paths_in(paths.state_journal):
        _set_aside(path, folder / path.name)
    if paths.replica.exists():
        return replace(broken, set_aside=(str(folder),))
    journal, _ = open_state(paths, StateTables(), _log_failure, writable=True)
    try:
        journal.renumber()  # the replicas of its group have other tables
    finally:
        journal.close(compact=False)
    return replace(broken, set_aside=(str(folder),))


def _log_failure(error: StoreError) -> None:
    _log.error("%s", error)


def _set_aside(path: Path, copy: Path) -> None:
    """Copy a file, or move it if the disk cannot read it."""
    try:
        fileutil.replace(copy, fileutil.read_whole(path))
    except StoreFailed:
        fileutil.move(path, copy)


def _free_name(path: Path) -> Path:
    number = 1
    while (numbered := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return numbered


def _tables(paths: StorePaths) -> list[_Table]:
    """Return all tables that a broker needs to start.

    Tables from which others are rebuilt come first.
    """
    identity = paths.root / "raymq" / "broker.json"
    journals, snapshots = journal_files.files_in(paths.state_journal)
    has_journal = snapshots or any(path.stat().st_size for path in journals.values())
    return [
        *(() if has_journal else _rocketmq_tables(paths)),
        _Table(
            paths.settings,
            lambda: read_broker_config(paths.settings),
            lambda: (None, "nothing: only the broker's configuration applies"),
            "for how long log files are kept, and when they are deleted, if that was changed while the broker ran "
            "(fileReservedTime, deleteWhen): if they have to stay longer, configure that before you start it",
        ),
        _Table(
            identity,
            lambda: read_port_epoch(identity),
            lambda: (None, "a new port, chosen at the next start"),
            "the broker's address: message ids that clients have saved name the former one",
        ),
    ]


def _rocketmq_tables(paths: StorePaths) -> list[_Table]:
    """Return RocketMQ's files, from which a start without a state journal reads the tables."""
    offsets, delays = paths.config / "consumerOffset.json", paths.config / "delayOffset.json"
    return [
        _Table(
            offsets,
            lambda: read_consumer_offsets(offsets),
            lambda: ({}, "only the offsets in the journal, committed since the file was written"),
            "the offsets of the groups: a group without an offset begins at its members' consume_from, "
            "so reset its offsets by time before you start its members",
        ),
        _Table(
            delays,
            lambda: read_delay_offsets(delays),
            lambda: ({}, "no offsets: the next start reads the log to find what was delivered"),
            "nothing",
        ),
        _Table(
            paths.topics,
            lambda: json_file.load_as(paths.topics, TopicConfigs.parse),
            lambda: _topics(paths),
            "permissions, attributes and the ordered flag, where the journal does not have them; empty queues",
        ),
        _Table(
            paths.groups,
            lambda: json_file.load_as(paths.groups, GroupConfigs.parse),
            lambda: _groups(paths, offsets),
            "settings of single groups, where the journal does not have them; groups without progress, "
            "which are created again when they connect",
        ),
        _Table(
            paths.request_modes,
            lambda: json_file.load_as(paths.request_modes, read_modes),
            lambda: (None, "nothing: all groups use the mode of their members"),
            "which groups were set to pop",
        ),
    ]


def _topics(paths: StorePaths) -> tuple[Mapping[str, Any], str]:
    """Rebuild the topics from the queues on disk."""
    table = {}
    for topic in fileutil.paths_in(paths.consume_queue):
        queues = max((int(each.name) + 1 for each in fileutil.paths_in(topic) if _is_number(each)), default=0)
        if queues and topic.name != SCHEDULE_TOPIC:
            table[topic.name] = TopicConfig(topic.name, queues, queues).to_json()
    return {"topicConfigTable": table}, f"{len(table)} topics, from the queues on disk, with ordinary settings"


def _is_number(path: Path) -> bool:
    return path.name.isascii() and path.name.isdecimal()


def _groups(paths: StorePaths, offsets: Path) -> tuple[Mapping[str, Any], str]:
    """Rebuild the groups that have offsets or a retry topic."""
    topics = [topic.name for topic in fileutil.paths_in(paths.consume_queue)]
    names = {name.removeprefix(_RETRY_PREFIX) for name in topics if name.startswith(_RETRY_PREFIX)}
    with contextlib.suppress(StoreCorrupt):  # a repair has already rebuilt it; `find_broken` does without it
        names.update(read_consumer_offsets(offsets).offsets)
    table = {name: GroupConfig(name).to_json() for name in sorted(names - {""})}
    return {"subscriptionGroupTable": table, "forbiddenTable": {}}, f"{len(table)} groups, with ordinary settings"
