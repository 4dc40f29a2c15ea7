"""Read a directory of format 1, whose tables become a snapshot of the state journal.

Format 1 had a file, a journal or a folder for each table. `state_opening` reads them into the tables, writes the first
snapshot and RocketMQ's files, and removes them. So a crash at any step leaves either all former files and no snapshot,
or a snapshot and some former files that nobody reads any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack

from raymq.storage.files import fileutil, json_file
from raymq.storage.former_files import former_files
from raymq.storage.journal.journal_frames import decode_frames
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.log.checkpoint import CheckpointState, effective_deletions
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.group_config import GroupConfigs
from raymq.storage.tables.mirrored_file import decode_mirrored
from raymq.storage.tables.offset_files import read_consumer_offsets, read_delay_offsets
from raymq.storage.tables.request_mode import read_modes
from raymq.storage.tables.state_tables import StateTables
from raymq.storage.tables.topic_config import TopicConfigs

_log = logging.getLogger(__name__)


def is_format_1(paths: StorePaths) -> bool:
    """Return True if the directory has files of format 1."""
    return bool(former_files(paths, 1))


def read(paths: StorePaths, tables: StateTables) -> None:
    """Read the former files into empty tables; what is damaged is reported and left out.

    Raises:
        StoreCorrupt: one of RocketMQ's files and its `.bak` are unreadable.
        StoreBusy, StoreFailed: a file cannot be read (now).
    """
    own = paths.root / "raymq"
    deleted = _deletions(paths, own)
    for fields in tables.deleted_topics.add_known(deleted):
        tables.deleted_topics.apply(fields)
    _read_settings(tables.topics, paths.topics, own / "topics.journal")
    _read_settings(tables.groups, paths.groups, own / "groups.journal")
    _read_offsets(paths.config, own / "progress.journal", tables, deleted)
    _read_in_flight(own / "in_flight.journal", tables, deleted)
    for fields in tables.request_modes.replace_all(_object_in(paths.request_modes, read_modes)):
        tables.request_modes.apply(fields)
    _read_values(own, tables)


def _deletions(paths: StorePaths, own: Path) -> Mapping[str, int]:
    """Return where the log ended at the last deletion of each topic."""
    entries, behind = _frames(own / "deletions.journal")
    deletions = effective_deletions((str(topic), int(place)) for topic, place in (*entries, *behind))
    return (CheckpointState.load(paths.state) or CheckpointState()).with_deletions(deletions).deleted_topics


def _frames(path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return a journal's entries up to the first damage, and those after it.

    A journal had up to three files: the state before it, itself, and the entries since its state is being written.
    """
    entries: list[tuple[Any, ...]] = []
    behind: list[tuple[Any, ...]] = []
    is_damaged = False
    for file in (path.with_name(f"{path.name}.base"), path, path.with_name(f"{path.name}.beside")):
        with contextlib.suppress(FileNotFoundError):
            found = decode_frames(fileutil.read_whole(file))
            for begin, end in found.damage:
                _log.error("%s: %d bytes at %d are not what was written, and are lost", file, end - begin, begin)
            (behind if is_damaged else entries).extend(found.entries)
            behind += found.behind
            is_damaged |= bool(found.damage)
    return entries, behind


def _read_settings(table: TopicConfigs | GroupConfigs, file: Path, journal: Path) -> None:
    raw = _object_in(file, table.parse)
    for fields in table.replace_all(raw):
        table.apply(fields)
    version, _, _ = table.parse(raw)
    entries, behind = _frames(journal)
    for entry in (*entries, *behind):
        try:
            if entry[1] > version.counter:  # else the file includes this change
                table.apply(entry)
        except json_file.DECODE_ERRORS as error:
            _log.error("%s: the change %.200r cannot be read, and is lost: %s", journal, entry, error)


def _object_in(path: Path, parse: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the object in one of RocketMQ's files, or in its spare copy."""

    def interpret(raw: dict[str, Any]) -> dict[str, Any]:
        parse(raw)
        return raw

    return json_file.load_as(path, interpret)


def _read_offsets(config: Path, path: Path, tables: StateTables, deleted: Mapping[str, int]) -> None:
    """Read the files of offsets, and the journal of the commits since they were written.

    If RocketMQ wrote a file, the commits in the journal are older. Then a commit never moves an offset back.
    """
    offsets, levels = tables.consumer_offsets, tables.delay_offsets
    consumers, delays = (
        read_consumer_offsets(config / "consumerOffset.json"),
        read_delay_offsets(config / "delayOffset.json"),
    )
    for fields in (*offsets.raise_offsets(consumers.offsets), *_resets(consumers.resets, consumers.offsets)):
        offsets.apply(fields)
    levels.apply((0, delays.log_end))
    for level in delays.offsets.items():
        levels.apply(level)
    forgotten = consumers.forgotten
    for is_behind, entries in enumerate(_frames(path)):
        for kind, *rest in entries:
            if kind == "d":
                known = levels.get(rest[0])
                if not delays.is_foreign or known is None or rest[1] > known:
                    (levels.apply_after_loss if is_behind else levels.apply)(rest)
            elif kind == "c" and consumers.is_foreign:
                group, topic, queue_id, offset = rest
                for fields in offsets.raise_offsets({group: {topic: {queue_id: offset}}}):
                    offsets.apply(fields)
            elif kind == "t" and not consumers.is_foreign:
                offsets.forget_topic(*rest)
                forgotten = {**(forgotten or {}), rest[0]: rest[1]}
            elif kind == "k" and not consumers.is_there:  # the first entry of a journal that records all deletions
                forgotten = forgotten or {}
            elif kind in ("c", "r", "h", "g") and not consumers.is_foreign:
                offsets.apply((kind, *rest))
    for topic in _deleted_later(deleted, forgotten):
        offsets.forget_topic(topic, deleted[topic])


def _resets(
    resets: Iterable[tuple[str, str, int]], offsets: Mapping[str, Mapping[str, Mapping[int, int]]]
) -> Iterator[Fields]:
    for group, topic, queue_id in resets:
        offset = offsets.get(group, {}).get(topic, {}).get(queue_id)
        if offset is not None:
            yield "r", group, topic, queue_id, offset


def _read_in_flight(path: Path, tables: StateTables, deleted: Mapping[str, int]) -> None:
    table, read = tables.in_flight, _frames(path)
    forgotten: dict[str, int] | None = None if read[0] else {}
    for is_behind, entries in enumerate(read):
        for entry in entries:
            kind, topic, rest = entry[0], entry[2], entry[4:]
            if kind == "k":
                forgotten = dict(rest[0])
            elif kind == "t":
                table.forget_topic(topic, rest[0])
                forgotten = {**(forgotten or {}), topic: rest[0]}
            else:
                (table.apply_after_loss if is_behind else table.apply)(entry)
    for topic in _deleted_later(deleted, forgotten):
        table.forget_topic(topic, deleted[topic])


def _deleted_later(deleted: Mapping[str, int], forgotten: Mapping[str, int] | None) -> list[str]:
    """Return the topics whose last deletion a table does not include.

    Args:
        forgotten: where the log ended at each deletion that the table includes; None: it did not record that.
    """
    return [topic for topic, place in deleted.items() if forgotten is not None and forgotten.get(topic, -1) < place]


def _read_values(own: Path, tables: StateTables) -> None:
    """Read the tables that had a file for each value."""
    for path in fileutil.paths_in(own / "homes"):
        _apply(tables.coordinators, path, lambda value, _: [value])
    _apply(tables.known_brokers, own / "members", lambda value, _: value.items())
    for folder in fileutil.paths_in(own / "streams"):
        for path in fileutil.paths_in(folder):
            _apply(tables.stream_plans, path, _stream_plans)
    for path in fileutil.paths_in(own / "writes"):
        _apply(tables.writes, path, lambda value, path: [("w", path.name, *value)])
    for path in fileutil.paths_in(own / "series"):
        _apply(tables.writes, path, lambda value, _: [("s", *value)])
    _apply(tables.transaction_checks, own / "transaction_checks", lambda value, _: [*value[0], (-1, value[1])])


def _stream_plans(value: Any, path: Path) -> list[Fields]:
    turn, plans = value
    return [(path.parent.name, path.name, turn, *plans)]


def _apply(table: JournaledTable, path: Path, events_of: Callable[[Any, Path], Iterable[Fields]]) -> None:
    """Apply the events that the value of a file stands for."""
    if path.name.endswith(".tmp"):
        return
    try:
        for fields in events_of(decode_mirrored(fileutil.read_whole(path), path), path):
            table.apply(fields)
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        _log.error("%s cannot be read, and its content is lost: %s", path, error)
