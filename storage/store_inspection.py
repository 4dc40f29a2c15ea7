"""Describe a store directory: its files, formats, offsets and tables. Nothing is changed or locked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raymq.storage.directory_format import read_format
from raymq.storage.errors import InvalidInput, OffsetOutOfRange, StoreCorrupt
from raymq.storage.files.directory_lock import DirectoryLock
from raymq.storage.records.record import Record
from raymq.storage.state_opening import read_tables
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.broker_identity import BrokerIdentity, read_broker_identity
from raymq.storage.tables.state_tables import StateTables

#: How many messages one read of a dump returns.
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class FolderSize:
    """The files below a folder of the store: their number, the bytes of their contents, and those on the disk."""

    folder: str
    files: int
    bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """The offsets of one queue; `max_offset` is that of the next message."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of one table of the state: its rows where they are countable, and the events of a snapshot of it."""

    table: str
    rows: int | None
    events: int


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """What is in a store directory.

    Attributes:
        format, written_by: of RayMQ's own files, and the version of RayMQ that raised it.
        broker: the broker that owns the directory; its fields are empty if none is known.
        pid: the process that has the store open; None if none has.
        clean: True if the last process closed the store; None while it is open.
        log_begin, log_end: the physical offsets of the log.
        truncated_bytes: what a start would cut off the end of the log, after a crash.
    """

    directory: str
    format: int
    written_by: str
    broker: BrokerIdentity
    pid: int | None
    clean: bool | None
    log_begin: int
    log_end: int
    truncated_bytes: int
    folders: list[FolderSize]
    queues: list[StoredQueue]
    tables: list[TableSize]


@dataclass(slots=True)
class DumpReport:
    """What a dump has left out: `unreadable` are damaged messages as (topic, queue id, offset, reason)."""

    unreadable: list[tuple[str, int, int, str]] = field(default_factory=list)


def inspect_store(directory: Path) -> StoreDescription:
    """Return what is in a directory, whose broker may run.

    Raises:
        InvalidInput: it is no store directory.
        FormatTooNew, StoreCorrupt: a newer RayMQ has written there, or files cannot be read.
    """
    paths = _store_paths(directory)
    known = read_format(directory)
    pid = DirectoryLock.holder(paths.lock)
    with Store.open(directory, read_only=True) as store:
        queues = [
            StoredQueue(topic, queue_id, store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
            for topic in sorted(store.topics())
            for queue_id in sorted(store.queues(topic))
        ]
        log_begin, log_end = store.min_physical_offset, store.max_physical_offset
        truncated = store.recovery.truncated_bytes
    return StoreDescription(
        str(directory),
        known.number,
        known.written_by,
        read_broker_identity(directory / "raymq" / "broker.json"),
        pid,
        None if pid is not None else not paths.abort.exists(),
        log_begin,
        log_end,
        truncated,
        _folder_sizes(directory),
        queues,
        _table_sizes(read_tables(paths)),
    )


def iter_records(
    directory: Path,
    topic: str | None = None,
    queue_id: int | None = None,
    begin: int | None = None,
    report: DumpReport | None = None,
) -> Iterator[Record]:
    """Iterate over the stored messages of a directory, queue by queue, whose broker may run.

    Args:
        topic, queue_id: only these; None: all.
        begin: the first offset in each queue; None: the first that is stored.
        report: collects the messages that are damaged; they are left out.

    Raises:
        InvalidInput: it is no store directory, or has no such topic.
    """
    _store_paths(directory)
    with Store.open(directory, read_only=True) as store:
        known = {*store.topics(), *store.topic_configs.all()}
        if topic is not None and topic not in known:
            raise InvalidInput("topic", f"one of {', '.join(sorted(known))}", topic)
        for name in sorted(store.topics()) if topic is None else [topic]:
            for number in sorted(store.queues(name)):  # those that have ever had a message
                if queue_id is None or number == queue_id:
                    yield from _of_queue(store, name, number, begin, report or DumpReport())


def _of_queue(store: Store, topic: str, queue_id: int, begin: int | None, report: DumpReport) -> Iterator[Record]:
    offset, end = max(begin or 0, store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)
    while offset < end:
        try:
            with store.read(topic, queue_id, offset, _AT_ONCE) as lease:
                records, offset = lease.messages(), lease.next_offset
        except StoreCorrupt as error:
            damaged = offset if error.queue_offset is None else error.queue_offset
            report.unreadable.append((topic, queue_id, damaged, str(error)))
            offset = max(offset, damaged) + 1
        except OffsetOutOfRange as error:  # a running broker has removed the log file meanwhile
            offset = max(offset + 1, error.min_offset)
        else:
            yield from records


def _store_paths(directory: Path) -> StorePaths:
    paths = StorePaths(directory)
    if not paths.commit_log.is_dir():
        raise InvalidInput("directory", "a store directory", str(directory))
    return paths


def _folder_sizes(directory: Path) -> list[FolderSize]:
    """Return the size of each folder; "." has the directory's own files."""
    totals: dict[str, list[int]] = {}
    for folder, _, files in os.walk(directory):
        parts = Path(folder).relative_to(directory).parts
        name = "/".join(parts[: 2 if parts[:1] == ("raymq",) else 1]) or "."
        for file in files:
            try:
                status = os.lstat(os.path.join(folder, file))
            except FileNotFoundError:  # a running broker has removed it
                continue
            total = totals.setdefault(name, [0, 0, 0])
            total[0] += 1
            total[1] += status.st_size
            total[2] += status.st_blocks * 512
    return [FolderSize(name, *total) for name, total in sorted(totals.items())]


def _table_sizes(tables: StateTables) -> list[TableSize]:
    rows: Mapping[str, Callable[[], int]] = {
        "topics": lambda: len(tables.topics.all()),
        "groups": lambda: len(tables.groups.all()),
        "consumer_offsets": lambda: _count_offsets(tables),
        "in_flight": lambda: sum(len(each.deliveries) for each in tables.in_flight.queues.values()),
        "quarantined": lambda: len(tables.quarantined.notes()),
    }
    names = {id(table): name for name, table in vars(tables).items()}
    return [
        TableSize(
            name := names.get(id(table), type(table).__name__),
            rows[name]() if name in rows else None,
            sum(1 for _ in table.snapshot()),
        )
        for table in tables.all()
    ]


def _count_offsets(tables: StateTables) -> int:
    offsets = tables.consumer_offsets
    return sum(len(offsets.of(group, topic)) for group in offsets.groups() for topic in offsets.topics_of(group))
