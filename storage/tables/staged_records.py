"""Records that are staged until their write is committed, in files beside the log.

No reader sees them before the commit. Files:

    <store>/raymq/staged/<transaction>/<part>.<number>.chunk     u4 header length | msgpack header | records
    <store>/raymq/staged/<transaction>/<part>.<number>.intent    two i8 for each attempt: where the log ended before
                                                                 it, and where the log ended when it had failed
    <store>/raymq/staged/<transaction>/<part>.<number>.done      i8: the chunk is in the log, which ended there then;
                                                                 written twice, the second time with all bits inverted
    <store>/raymq/staged/<transaction>/<part>.<number>.lost      msgpack: how many of the chunk's rows are lost (nil:
                                                                 not known), and why
    <store>/raymq/staged/<transaction>/home                      `kept_twice`: the coordinator of the transaction
    <store>/raymq/staged/<transaction>/commit                    `kept_twice`: the decision to commit these parts; the
                                                                 ends of each queue and the log before the commit, the
                                                                 ids of the topics, and after a power loss where the
                                                                 log ended then
    <store>/raymq/staged/<transaction>/committed                 all parts are in the log, and on disk; empty, or
                                                                 msgpack: how many rows are missing, and why
    <store>/raymq/staged/<transaction>/aborted                   no part will be committed

A chunk is complete or absent (written under another name, then renamed). The intent makes a commit repeatable: during
an attempt nothing but the chunk is appended. So the records between the two positions of an attempt belong to the
chunk, and all other records do not, even if they are equal. After a crash, the second position is where the log ended
when the store was next opened. If a power loss removes part of a chunk from the log, the chunk is no longer done, so
the data are kept until the log has all of them on disk. Intents and marks of done chunks survive SIGKILL and are not
synced. A power loss may remove them. Then any chunk may be anywhere after the position that the commit names, and this
part of the log is searched, once for all chunks. Notes of lost rows are not synced either, but their chunks are never
marked as done: a repeated commit checks them again.

The marks of finished transactions are kept for a while: they reject a client that stages after the decision, for
example an attempt that was superseded.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.files.fileutil import (
    close,
    make_folder,
    move,
    names_in,
    open_file,
    paths_in,
    read_whole,
    remove_tree,
    replace,
    sync_directory,
    unlink,
    write_all,
)
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.tables.mirrored_file import decode_mirrored, kept_twice
from raymq.storage.tables.staged_chunk import StagedChunk, encode_chunk, read_chunk, read_chunk_queue

#: The valid names of transactions and parts, which become file names.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POSITION = struct.Struct(">q")
#: The end of an attempt that has not ended.
_OPEN = -1
#: How long the marks of finished transactions are kept.
FINISHED_MARK_SECONDS = 600.0
_HOME = "home"
_COMMIT = "commit"
_COMMITTED = "committed"
_ABORTED = "aborted"
#: The most reasons that are reported for missing rows.
_MAX_REASONS = 3
#: The name prefix of a folder that is being removed; no transaction has such a name.
_SWEPT = "."


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """The decision to append the parts of a transaction.

    Attributes:
        ends: where each queue ended for readers before the first chunk.
        log_from: where the log ended then.
        topic_ids: the ids of the queues' topics then; a topic that was recreated since has another id.
        uncertain_until: None, or where the log ended after a power loss: any chunk may be between `log_from` and this
            position.
        found: how many rows the existing chunks had then; None: they were not counted.
        absent: how many more rows there should have been.
        cut: for each topic whose number of queues was reduced by then: the first removed queue id, and the number of
            queues among which the rows of removed queues are distributed.
    """

    parts: tuple[str, ...]
    ends: Mapping[tuple[str, int], int]
    log_from: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    uncertain_until: int | None = None
    found: int | None = None
    absent: int = 0
    cut: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def queue_of(self, topic: str, queue_id: int) -> int:
        """Return the queue that receives the rows of a chunk that was staged for `queue_id`.

        It is another queue if the staged queue was removed.
        """
        gone_from, queues = self.cut.get(topic, (queue_id + 1, 1))
        return queue_id if queue_id < gone_from else queue_id % queues


class MissingRows(NamedTuple):
    """How many rows of a commit are missing in the log, and why."""

    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The file of a chunk.

    Attributes:
        is_attempted: an earlier commit has declared an attempt to append it.
        is_done: it is in the log.
    """

    path: Path
    is_attempted: bool
    is_done: bool


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """A transaction that has files on this broker's disk.

    Attributes:
        home: the broker that coordinates it.
        commit: the decision to commit, if not all of it is in the log yet.
        over: "committed" or "aborted" if the transaction is finished.
    """

    name: str
    home: str
    commit: CommitDecision | None
    over: str | None


class StagedRecords:
    """The staged files of one store directory; one thread at a time."""

    def __init__(self, store_directory: Path) -> None:
        self._root = store_directory / "raymq" / "staged"

    def add(
        self,
        transaction: str,
        part: str,
        number: int,
        topic_queue: tuple[str, int],
        records: bytes | memoryview,
        sizes: npt.NDArray[np.int32],
        *,
        home: str = "",
        incarnation: int = 0,
        topic_id: str | None = None,
    ) -> None:
        """Store chunk `number` of `part` durably; an existing chunk is replaced.

        It survives a machine crash when this returns. Any thread may call it.

        Args:
            home: the broker that coordinates the transaction.
            incarnation, topic_id: those of the topic.

        Raises:
            InvalidInput: a name or number is not valid, the transaction has another coordinator, or it is already
                decided. StoreFull, StoreFailed: the chunk is not stored.
        """
        directory = self._directory(transaction)
        if not 0 <= number < 1_000_000:
            raise InvalidInput("number", "0..999999", number)
        _checked("part", part)
        known = self._coordinator(transaction)
        if known is not None and known != home:
            raise InvalidInput("home", f"the coordinator of {transaction}, which is {known!r}", home)
        if any((directory / mark).exists() for mark in (_COMMIT, _COMMITTED, _ABORTED)):
            raise InvalidInput("transaction", "one that is not decided yet", transaction)
        if known is None:
            make_folder(directory)
            replace(directory / _HOME, kept_twice([home]))
        data = encode_chunk(topic_queue, records, sizes, incarnation, topic_id)
        replace(directory / f"{part}.{number:06d}.chunk", data)

    def chunks(self, transaction: str, part: str) -> list[StagedChunk]:
        """Return the chunks of `part` that are not yet in the log, in order.

        Raise StoreCorrupt if a chunk cannot be read.
        """
        return [read_chunk(each.path) for each in self.list_files(transaction, [part]) if not each.is_done]

    def list_files(self, transaction: str, parts: Iterable[str]) -> list[StagedFile]:
        """Return the files of these parts' chunks, in the order of the parts.

        The folder is listed once, for any number of parts. Any thread may call it.
        """
        folder = self._directory(transaction)
        by_part: dict[str, list[str]] = {_checked("part", part): [] for part in parts}
        names = set(names_in(folder))
        for name in names:
            part, _, rest = name.partition(".")
            if rest.endswith(".chunk") and part in by_part:
                by_part[part].append(name.removesuffix("chunk"))
        return [
            StagedFile(folder / f"{stem}chunk", f"{stem}intent" in names, f"{stem}done" in names)
            for stems in by_part.values()
            for stem in sorted(stems)
        ]

    def transactions(self) -> Iterator[StagedTransaction]:
        """Yield all transactions on this broker.

        A file that cannot be read counts as missing.
        """
        for path in paths_in(self._root):
            if _NAME.fullmatch(path.name):
                names = {each.name for each in paths_in(path)}
                over = next((mark for mark in (_COMMITTED, _ABORTED) if mark in names), None)
                commit = self.decided(path.name) if over is None else None
                yield StagedTransaction(path.name, self._coordinator(path.name) or "", commit, over)

    def home_of(self, transaction: str) -> str | None:
        """Return the coordinator of a transaction on this broker.

        Return None if the transaction or its coordinator is not known here.
        """
        return self._coordinator(transaction) or None

    def _coordinator(self, transaction: str) -> str | None:
        path = self._directory(transaction) / _HOME
        try:
            content = read_whole(path)
        except FileNotFoundError:
            return None
        with contextlib.suppress(ValueError, TypeError, msgpack.UnpackException):
            (coordinator,) = decode_mirrored(content, path)
            return str(coordinator)
        name = content.decode("latin-1")  # older versions wrote only the name
        return name if name.isprintable() else ""

    def decide(self, transaction: str, commit: CommitDecision) -> None:
        """Record the decision to append these parts, before the first of them is appended.

        It survives a machine crash.
        """
        ends = [[topic, queue_id, end] for (topic, queue_id), end in commit.ends.items()]
        content = [list(commit.parts), ends, commit.log_from, dict(commit.topic_ids), commit.uncertain_until]
        content += [commit.found, commit.absent, {topic: list(each) for topic, each in commit.cut.items()}]
        make_folder(self._directory(transaction))
        replace(self._directory(transaction) / _COMMIT, kept_twice(content))

    def decided(self, transaction: str) -> CommitDecision | None:
        """Return the last recorded decision.

        Return None if there is none or it cannot be read.
        """
        try:
            more: list[Any]
            path = self._directory(transaction) / _COMMIT
            parts, ends, log_from, *more = decode_mirrored(read_whole(path), path)
            queue_ends = {(str(topic), int(queue_id)): int(end) for topic, queue_id, end in ends}
            # Older versions wrote less.
            known, uncertain_until, found, absent, less = more + [{}, None, None, 0, {}][len(more) :]
            topic_ids = {str(topic): str(topic_id) for topic, topic_id in known.items()}
            doubtful = None if uncertain_until is None else int(uncertain_until)
            counted = None if found is None else int(found)
            places = tuple(map(str, parts)), queue_ends, int(log_from)
            cut = {str(topic): (int(gone_from), max(1, int(queues))) for topic, (gone_from, queues) in less.items()}
            return CommitDecision(*places, topic_ids, doubtful, counted, int(absent), cut)
        except (FileNotFoundError, ValueError, TypeError, AttributeError, msgpack.UnpackException):
            return None

    def record_lost_rows(self, path: Path, rows: int | None, reason: str) -> None:
        """Record how many rows of a chunk's file are lost; None: unknown.

        The number is unknown if the chunk cannot be read. A power loss may remove the note. Then the chunk is not
        marked as done either, and the commit detects the loss again. `close` makes all notes durable.
        """
        _put(path.with_suffix(".lost"), msgpack.packb([rows, reason]))

    def attempts(self, chunk: StagedChunk) -> list[tuple[int, int | None]]:
        """Return the ranges of the log to which earlier commits appended records of `chunk`.

        An end of None means the end of the log.
        """
        path = chunk.path.with_suffix(".intent")
        return _attempts(read_whole(path)) if path.exists() else []

    def begin_attempt(self, chunk: StagedChunk, log_end: int) -> None:
        """Declare that `chunk`, or its missing rest, is about to be appended after `log_end`."""
        _write_attempts(chunk.path.with_suffix(".intent"), [*_ended(self.attempts(chunk), log_end), (log_end, None)])

    def fail_attempt(self, chunk: StagedChunk, log_end: int) -> None:
        """Record that the last declared attempt failed; its records are before `log_end`.

        The end is written into the space that the declaration has reserved, so a full disk cannot refuse it.
        """
        path = chunk.path.with_suffix(".intent")
        fd = open_file(path, os.O_RDWR)
        try:
            os.lseek(fd, -_POSITION.size, os.SEEK_END)
            write_all(fd, _POSITION.pack(log_end), path)
        finally:
            close(fd)

    def finish(self, chunk: StagedChunk, log_end: int) -> None:
        """Mark `chunk` as completely in the log, before `log_end`."""
        _put(chunk.path.with_suffix(".done"), _done(log_end))

    def clamp(self, recovery_bounds: RecoveryBounds) -> None:
        """Clamp the files to what the log has, when the store is opened.

        No attempt is in progress then, and entries about positions that the log does not have are void.
        """
        folders = paths_in(self._root)
        for folder in folders:
            void = [path for path in paths_in(folder) if path.suffix == ".done" and not _is_done(path, recovery_bounds)]
            _remove_all_of(folder, void)
        if recovery_bounds.memory_lost:
            self._clamp_unsynced(recovery_bounds)
        for folder in folders:
            void = []
            for path in (path for path in paths_in(folder) if path.suffix == ".intent"):
                attempts = _attempts(read_whole(path))
                retained = [
                    (begin, end)
                    for begin, end in _ended(attempts, recovery_bounds.log_end)
                    if recovery_bounds.has(begin)
                ]
                if not retained:
                    void.append(path)
                elif retained != attempts:
                    _write_attempts(path, retained, durable=True)
            _remove_all_of(folder, void)

    def _clamp_unsynced(self, recovery_bounds: RecoveryBounds) -> None:
        """Prepare unfinished commits after a power loss: each may have appended any of its chunks.

        Queues may end earlier than before. The records that the commit appends from now on begin there, and they are
        hidden from readers from there on.
        """
        for each in self.transactions():
            if each.commit is not None:
                log_from = min(each.commit.log_from, recovery_bounds.log_end)
                ends = {
                    (topic, queue_id): min(end, recovery_bounds.max_offset(topic, queue_id))
                    if recovery_bounds.deleted_topics.get(topic, 0)
                    <= log_from  # otherwise it is the end of a deleted queue
                    else end
                    for (topic, queue_id), end in each.commit.ends.items()
                }
                doubtful = replaced(each.commit, ends=ends, log_from=log_from, uncertain_until=recovery_bounds.log_end)
                self.decide(each.name, doubtful)
                waiting = [file for file in self.list_files(each.name, each.commit.parts) if not file.is_done]
                intents = [file.path.with_suffix(".intent") for file in waiting if file.is_attempted]
                _remove_all_of(self._directory(each.name), intents)

    def is_here(self, transaction: str) -> bool:
        """Return True if this broker has files of the transaction; any thread."""
        return self._directory(transaction).is_dir()

    def is_committed(self, transaction: str) -> bool:
        """Return True if the whole transaction is in the log."""
        return (self._directory(transaction) / _COMMITTED).exists()

    def close(self, transaction: str) -> None:
        """Record durably that the whole transaction is in the log, on disk; any thread.

        `empty` may be called afterwards.
        """
        directory = self._directory(transaction)
        missing = self._missing_now(transaction)
        make_folder(directory)
        failpoint("staged.before_close")
        replace(directory / _COMMITTED, b"" if missing is None else msgpack.packb(list(missing)))
        failpoint("staged.after_close")

    def missing(self, transaction: str) -> MissingRows | None:
        """Return the missing rows of a closed transaction; any thread.

        Return None if no rows are missing or the transaction is not closed.
        """
        try:
            rows, reason = msgpack.unpackb(read_whole(self._directory(transaction) / _COMMITTED))
            return MissingRows(int(rows), str(reason))
        except (FileNotFoundError, ValueError, TypeError, msgpack.UnpackException):
            return None

    def _missing_now(self, transaction: str) -> MissingRows | None:
        """Return the missing rows of a commit that is about to be closed."""
        commit = self.decided(transaction)
        if commit is None:
            return None
        lost = [_lost(path) for path in paths_in(self._directory(transaction)) if path.suffix == ".lost"]
        reasons = dict.fromkeys(reason for _, reason in lost)
        if commit.absent:
            reasons = {f"{commit.absent} rows are not staged": None, **reasons}
        rows = commit.absent + sum(each for each, _ in lost if each is not None)
        if commit.found is not None and any(each is None for each, _ in lost):
            # Rows of chunks that could be counted when the commit began but no longer: all that the other chunks lack.
            chunks = [read_chunk_queue(file.path) for file in self.list_files(transaction, commit.parts)]
            rows += max(0, commit.found - sum(each[1] for each in chunks if each is not None))
        return MissingRows(rows, "; ".join(list(reasons)[:_MAX_REASONS])) if rows else None

    def drop(self, transaction: str) -> None:
        """Mark a transaction as aborted, unless its commit is decided or complete."""
        directory = self._directory(transaction)
        if directory.is_dir() and not any((directory / mark).exists() for mark in (_COMMIT, _COMMITTED)):
            replace(directory / _ABORTED, b"")

    def empty(self, transaction: str) -> None:
        """Remove the data of a finished transaction; any thread.

        Nothing is removed if it is not finished. A power loss may restore the data.
        """
        directory = self._directory(transaction)
        if any((directory / mark).exists() for mark in (_COMMITTED, _ABORTED)):
            for path in paths_in(directory):
                if path.suffix or path.name == _COMMIT:
                    unlink(path)

    def mark_removable(self, transaction: str) -> None:
        """Rename the folder of a finished transaction; any thread.

        Its mark is then no longer found, and `remove_folders` removes the folder.
        """
        path = self._directory(transaction)
        if path.is_dir():
            move(path, path.with_name(_SWEPT + path.name))

    def _directory(self, transaction: str) -> Path:
        return self._root / _checked("transaction", transaction)


def removable_folders(root: Path) -> list[Path]:
    """Return the folders that `StagedRecords.mark_removable` has renamed."""
    return [path for path in paths_in(root) if path.name.startswith(_SWEPT)]


def _lost(path: Path) -> tuple[int | None, str]:
    """Return the content of a file of lost rows."""
    try:
        rows, reason = msgpack.unpackb(read_whole(path))
        return None if rows is None else int(rows), str(reason)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None, "the reason cannot be read"


def _attempts(content: bytes) -> list[tuple[int, int | None]]:
    """Return the attempts of an intent file; empty if it is not valid."""
    if len(content) % _POSITION.size:
        return []
    places: list[int | None] = [None if place == _OPEN else place for (place,) in _POSITION.iter_unpack(content)]
    ends = places[1::2] + [None] * (len(places) % 2)  # older versions wrote no end of an open attempt
    return [(begin, end) for begin, end in zip(places[::2], ends, strict=True) if begin is not None]


def _ended(attempts: Iterable[tuple[int, int | None]], log_end: int) -> list[tuple[int, int | None]]:
    """Return the attempts with their ends limited to `log_end`."""
    return [(begin, log_end if end is None else min(end, log_end)) for begin, end in attempts]


def _done(log_end: int) -> bytes:
    """Return the content of a done mark.

    A file whose bytes never reached the disk has zeros, which are not a valid mark.
    """
    return _POSITION.pack(log_end) + _POSITION.pack(~log_end)


def _is_done(path: Path, recovery_bounds: RecoveryBounds) -> bool:
    """Return True if a done mark is valid and the log has its position."""
    content = read_whole(path)
    log_end = _POSITION.unpack_from(content)[0] if len(content) == 2 * _POSITION.size else -1
    return content == _done(log_end) and recovery_bounds.has(log_end)


def _remove_all_of(folder: Path, paths: Iterable[Path]) -> None:
    """Remove files of a folder durably."""
    removed = False
    for path in paths:
        unlink(path)
        removed = True
    if removed:
        sync_directory(folder)


def _write_attempts(path: Path, attempts: Iterable[tuple[int, int | None]], *, durable: bool = False) -> None:
    places = (_OPEN if place is None else place for attempt in attempts for place in attempt)
    (replace if durable else _put)(path, b"".join(map(_POSITION.pack, places)))


def _put(path: Path, content: bytes) -> None:
    """Replace a file atomically; a power loss may still undo it.

    After a process crash the file has either the old or the new content. Raise StoreFull or StoreFailed if it fails;
    the old content stays.
    """
    successor = path.with_name(path.name + ".tmp")
    fd = open_file(successor, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, content, successor)
    finally:
        close(fd)
    move(successor, path)


def remove_folders(folders: Iterable[Path]) -> None:
    """Remove the folders that `StagedRecords.mark_removable` has renamed; any thread.

    Raise StoreFailed if the disk fails.
    """
    for folder in folders:
        remove_tree(folder)


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, "1 to 64 letters, digits, _ or -", name)
    return name
