"""Tables of a store directory that cannot be read, and neither can their spare copies: what can be made anew of them.

Where one of these files is broken its spare copy (`.bak`) is taken, and the log tells so. This is for the rest: each
such file is set aside, and in its place comes what else in the directory says of it. The journals of what was changed
since the file was written are untouched: the next opening replays them over it, as it does always.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from raymq.storage import paths as layout
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.directory_format import check_format
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFailed
from raymq.storage.files import fileutil, json_file
from raymq.storage.paths import Paths
from raymq.storage.state import sequence_file
from raymq.storage.tables.broker_identity import read_identity
from raymq.storage.tables.group_config import GroupConfig, GroupConfigs
from raymq.storage.tables.kept_settings import read_kept
from raymq.storage.tables.offset_tables import read_consumers, read_delays
from raymq.storage.tables.request_mode import RequestModes
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from raymq.storage.tables.unread_changes import UnreadChange

_RETRY_PREFIX: Final = "%RETRY%"


@dataclass(frozen=True, slots=True)
class BrokenTable:
    """A table that cannot be read.

    Attributes:
        file: its path; the spare copy beside it is broken or missing, too.
        problem: why it cannot be read.
        rebuilt: what a repair puts in its place.
        lost: what no file says any more.
        set_aside: where a repair moved what was there; empty before.
    """

    file: str
    problem: str
    rebuilt: str
    lost: str
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Table:
    """How one file is read, what is made anew of it (None: nothing), and what that is and is not."""

    path: Path
    read: Callable[[], object]
    make: Callable[[], tuple[Mapping[str, Any] | None, str]]
    lost: str


def find_broken(directory: str | os.PathLike[str]) -> list[BrokenTable]:
    """The tables that keep the store from being opened, and what can be made of them. Changes nothing.

    And the journals that tell changes which cannot be read: they keep no store closed, but those changes are lost.

    Raises:
        InvalidInput: it is no store directory. FormatTooNew: a newer RayMQ has written there.
    """
    paths = _paths(directory)
    return [broken for broken, _, _ in _broken(paths)] + [broken for broken, _ in _journals(paths)]


def repair(directory: str | os.PathLike[str]) -> list[BrokenTable]:
    """Set broken tables aside, below `raymq/damaged/`, and make them anew.

    Raises:
        InvalidInput: it is no store directory. FormatTooNew: a newer RayMQ has written there.
        StoreLocked: a broker has it open.
        StoreFull, StoreFailed: the disk does not let us; what was not repaired stays as it was.
    """
    paths = _paths(directory)
    lock = layout.take_lock(paths)
    try:
        sequence_file.forget(paths.root)
        tables = [_repaired(paths, *each) for each in _broken(paths)]
        return tables + [_settled(paths, *each) for each in _journals(paths)]
    finally:
        lock.release()


def _paths(directory: str | os.PathLike[str]) -> Paths:
    paths = Paths(Path(directory))
    # One without messages has no log; one that was killed before a table was written has neither folder.
    if not any(folder.is_dir() for folder in (paths.commit_log, paths.config, paths.state.parent)):
        raise InvalidInput("directory", "a store directory", str(directory))
    check_format(paths.root)
    return paths


def _broken(paths: Paths) -> list[tuple[BrokenTable, _Table, Mapping[str, Any] | None]]:
    found = []
    for table in _tables(paths):
        problem = _problem(table)
        if problem is not None:
            content, rebuilt = table.make()
            found.append((BrokenTable(str(table.path), problem, rebuilt, table.lost), table, content))
    return found


def _problem(table: _Table) -> str | None:
    """Why a table cannot be read; None if it can. Its spare copy counts."""
    try:
        table.read()
    except StoreCorrupt as error:
        return error.reason
    except StoreFailed as error:  # a disk that cannot read it: an operator who repairs has seen that it stays so
        return str(error)
    return None


def _repaired(paths: Paths, broken: BrokenTable, table: _Table, content: Mapping[str, Any] | None) -> BrokenTable:
    aside = []
    fileutil.make_folder(paths.damaged)
    for path in (table.path, json_file.spare_of(table.path)):
        if path.exists():
            kept = _free_name(paths.damaged / path.name)
            try:
                fileutil.replace(kept, fileutil.read_whole(path))
            except StoreFailed:
                fileutil.move(path, kept)
            aside.append(str(kept))
    for path in (table.path, json_file.spare_of(table.path)):
        if content is None:
            fileutil.remove(path)
        else:  # one after the other: a disk that takes no more leaves the one that was not reached
            fileutil.replace(path, json_file.encode(content).encode())
    return BrokenTable(broken.file, broken.problem, broken.rebuilt, broken.lost, tuple(aside))


_Settings = TopicConfigs | GroupConfigs


def _journals(paths: Paths) -> list[tuple[BrokenTable, Callable[[], _Settings]]]:
    """The journals that tell changes which cannot be read, and how each is opened so that these are set aside."""
    found: list[tuple[BrokenTable, Callable[[], _Settings]]] = []
    for kind, file, journal in (
        (TopicConfigs, paths.topics, paths.changed_topics),
        (GroupConfigs, paths.groups, paths.changed_groups),
    ):
        unread = _unread(kind, file, journal)
        if unread:
            names = ", ".join(sorted({each.name or "a change of an unknown setting" for each in unread}))
            broken = BrokenTable(
                str(journal),
                f"{len(unread)} changes cannot be read, the first because {unread[0].reason}",
                "nothing: what they should have changed is as it was before them",
                f"what was set last of {names}",
            )
            found.append((broken, partial(kind, file, writable=True, journal=journal, aside=paths.damaged)))
    return found


def _unread(kind: type[_Settings], file: Path, journal: Path) -> list[UnreadChange]:
    """What of a journal cannot be read; of all of it where the table it belongs to cannot be read either."""
    for table in (file, journal.with_name("no.json")):
        with contextlib.suppress(StoreCorrupt, StoreFailed):
            return kind(table, writable=False, journal=journal).unread
    return []


def _settled(paths: Paths, broken: BrokenTable, opened: Callable[[], _Settings]) -> BrokenTable:
    """Keep what cannot be read, and bring the rest into the table."""
    before = set(fileutil.paths_in(paths.damaged))
    settings = opened()
    try:
        settings.save()
    finally:
        settings.close()
    kept = sorted(str(path) for path in set(fileutil.paths_in(paths.damaged)) - before)
    return replace(broken, set_aside=tuple(kept))


def _free_name(path: Path) -> Path:
    number = 1
    while (numbered := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return numbered


def _tables(paths: Paths) -> list[_Table]:
    """All that have to be readable for a broker to start, those first that others are made anew of."""
    no_journal = paths.root / "raymq" / "no.journal"
    offsets, delays = paths.config / "consumerOffset.json", paths.config / "delayOffset.json"
    identity = paths.root / "raymq" / "broker.json"
    return [
        _Table(
            offsets,
            lambda: read_consumers(offsets),
            lambda: ({}, "no offsets, but those that were committed since it was written, which the journal has"),
            "how far the groups were: one without an offset begins as its members say (consume_from), "
            "so reset its offsets by time before you start them",
        ),
        _Table(
            delays,
            lambda: read_delays(delays),
            lambda: ({}, "no places: the next start finds what was delivered by reading the log"),
            "nothing",
        ),
        _Table(
            paths.topics,
            lambda: TopicConfigs(paths.topics, writable=False, journal=no_journal),
            lambda: _topics(paths),
            "permissions, attributes and the ordered flag, where the journal does not have them; empty queues",
        ),
        _Table(
            paths.groups,
            lambda: GroupConfigs(paths.groups, writable=False, journal=no_journal),
            lambda: _groups(paths, offsets),
            "what was set for single groups, where the journal does not have it; groups without progress, "
            "which are made again as they come",
        ),
        _Table(
            paths.request_modes,
            lambda: RequestModes(paths.request_modes, writable=False),
            lambda: (None, "nothing: all groups ask as their members do"),
            "which groups were told to pop",
        ),
        _Table(
            paths.settings,
            lambda: read_kept(paths.settings),
            lambda: (None, "nothing: the broker's configuration alone holds"),
            "for how long log files are kept, and when they go, where that was changed while the broker ran "
            "(fileReservedTime, deleteWhen): if they have to stay longer, say so before you start it",
        ),
        _Table(
            identity,
            lambda: read_identity(identity),
            lambda: (None, "a new port, chosen at the next start"),
            "the broker's address, so that ids of messages that clients keep name another one",
        ),
    ]


def _topics(paths: Paths) -> tuple[Mapping[str, Any], str]:
    """The topics that have queues on disk."""
    table = {}
    for topic in fileutil.paths_in(paths.consume_queue):
        queues = max((int(each.name) + 1 for each in fileutil.paths_in(topic) if _is_number(each)), default=0)
        if queues and topic.name != SCHEDULE_TOPIC:
            table[topic.name] = TopicConfig(topic.name, queues, queues).to_json()
    return {"topicConfigTable": table}, f"{len(table)} topics, by the queues on disk, as ordinary ones"


def _is_number(path: Path) -> bool:
    return path.name.isascii() and path.name.isdecimal()


def _groups(paths: Paths, offsets: Path) -> tuple[Mapping[str, Any], str]:
    """The groups that have progress, or a retry topic."""
    topics = [topic.name for topic in fileutil.paths_in(paths.consume_queue)]
    names = {name.removeprefix(_RETRY_PREFIX) for name in topics if name.startswith(_RETRY_PREFIX)}
    with contextlib.suppress(StoreCorrupt):  # it is repaired first; where that is only looked at, it says nothing
        names.update(read_consumers(offsets).offsets)
    table = {name: GroupConfig(name).to_json() for name in sorted(names - {""})}
    return {"subscriptionGroupTable": table, "forbiddenTable": {}}, f"{len(table)} groups, with ordinary settings"
