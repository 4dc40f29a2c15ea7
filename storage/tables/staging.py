"""Records that wait for their write's commit: files beside the log, invisible to every reader until then.

    <store>/raymq/staged/<transaction>/<part>.<number>.chunk     u4 header length | msgpack header | records
    <store>/raymq/staged/<transaction>/<part>.<number>.intent    two i8 for each attempt: the log's end before the chunk
                                                                 was appended, and when that had failed
    <store>/raymq/staged/<transaction>/<part>.<number>.done      i8: the chunk is in the log, which ended there then; it
                                                                 stands there twice, with all bits turned
    <store>/raymq/staged/<transaction>/<part>.<number>.lost      msgpack: how many of the chunk's rows do not come (nil:
                                                                 not known), and why
    <store>/raymq/staged/<transaction>/home                      `kept_twice`: the broker that decides about it
    <store>/raymq/staged/<transaction>/commit                    `kept_twice`: it is decided to be committed, these
                                                                 parts; where each queue and the log stood before that,
                                                                 the ids of the topics, and after a loss of power where
                                                                 the log ended then
    <store>/raymq/staged/<transaction>/committed                 all of them are in the log, and on disk; empty, or
                                                                 msgpack: how many rows are not, and why
    <store>/raymq/staged/<transaction>/aborted                   none of them will be

A chunk is whole or absent (written under another name, then renamed). The intent makes a commit repeatable: nothing is
appended meanwhile but the chunk, so what lies between the two places of an attempt is the chunk's own, and all else is
not, however alike. After a crash the second place is where the log ended when the store was opened next. What a loss of
power takes from the log is no longer done, so the data stay until the log has all of them on disk. Intents and marks of
done chunks survive SIGKILL and are not synced: a loss of power may take them, and then any chunk may stand anywhere
behind the place that the commit names: that part of the log is looked through, once for all of them. So do the notes of
what is lost, whose chunks are never marked as done: a commit that is repeated looks at them again.

The marks of what is over stay for a while: who stages after the decision, as an attempt that was overtaken does, is
refused by them.
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
from raymq.storage.tables.kept_twice import kept_twice, told_by
from raymq.storage.tables.remains import Remains
from raymq.storage.tables.staged_chunk import StagedChunk, chunk_file, read_chunk, read_topic_queue

#: What a transaction or a part may be called: it becomes a file's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POSITION = struct.Struct(">q")
#: Where an attempt ends that has not ended.
_OPEN = -1
#: The marks of transactions that are over are kept so long.
OVER_SECONDS = 600.0
_HOME = "home"
_COMMIT = "commit"
_COMMITTED = "committed"
_ABORTED = "aborted"
#: So many reasons are told of rows that are missing.
_MOST_REASONS = 3
#: How the name of a folder begins that is being removed; no transaction is called so.
_SWEPT = "."


@dataclass(frozen=True, slots=True)
class DecidedCommit:
    """What of a transaction is to be appended.

    Attributes:
        ends: where each queue ended for readers before the first chunk.
        log_from: where the log ended then.
        topic_ids: those of the queues' topics then; a topic that was made anew since has another one.
        doubtful_to: None, or where the log ended after a loss of power: between the two any chunk may stand.
        found: how many rows the chunks have that were there then; None: it was not counted.
        absent: how many more there should have been.
        cut: of topics that had fewer queues by then: from which queue on the rows of their chunks come to another one,
            and of how many that is one.
    """

    parts: tuple[str, ...]
    ends: Mapping[tuple[str, int], int]
    log_from: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    doubtful_to: int | None = None
    found: int | None = None
    absent: int = 0
    cut: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def queue_of(self, topic: str, queue_id: int) -> int:
        """The queue to which the rows of a chunk come that was staged for another one, or that one."""
        gone_from, queues = self.cut.get(topic, (queue_id + 1, 1))
        return queue_id if queue_id < gone_from else queue_id % queues


class MissingRows(NamedTuple):
    """How many rows of a commit do not come to be there, and why."""

    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A chunk's file.

    Attributes:
        is_attempted: an earlier commit was about to append it.
        is_done: it is in the log.
    """

    path: Path
    is_attempted: bool
    is_done: bool


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """One that is on disk here.

    Attributes:
        home: the broker that decides about it.
        commit: it is decided, and not all of it is in the log yet.
        over: "committed" or "aborted" where nothing is left to do.
    """

    name: str
    home: str
    commit: DecidedCommit | None
    over: str | None


class StagedRecords:
    """The staged files of one store directory. One thread at a time."""

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
        """Keep chunk `number` of `part`; the same again replaces it. It survives the machine's death when this returns.

        Any thread.

        Args:
            home: the broker that decides about the transaction.
            incarnation, topic_id: those of the topic.

        Raises:
            InvalidInput: a name or number that cannot be, another home than the transaction has, or a transaction that
                is decided. StoreFull, StoreFailed: it is not kept.
        """
        directory = self._directory(transaction)
        if not 0 <= number < 1_000_000:
            raise InvalidInput("number", "0..999999", number)
        _checked("part", part)
        known = self._home(transaction)
        if known is not None and known != home:
            raise InvalidInput("home", f"the home of {transaction}, which is {known!r}", home)
        if any((directory / mark).exists() for mark in (_COMMIT, _COMMITTED, _ABORTED)):
            raise InvalidInput("transaction", "one that is not decided yet: nothing can be added to it", transaction)
        if known is None:
            make_folder(directory)
            replace(directory / _HOME, kept_twice([home]))
        data = chunk_file(topic_queue, records, sizes, incarnation, topic_id)
        replace(directory / f"{part}.{number:06d}.chunk", data)

    def chunks(self, transaction: str, part: str) -> list[StagedChunk]:
        """The chunks of `part` that are not yet in the log, in order.

        StoreCorrupt: one cannot be read.
        """
        return [read_chunk(each.path) for each in self.listed(transaction, [part]) if not each.is_done]

    def listed(self, transaction: str, parts: Iterable[str]) -> list[StagedFile]:
        """The files of these parts' chunks, in the order of the parts: one look at the folder, however many they are.

        Any thread.
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
        """All that are here; one whose files cannot be read is told as if it had none."""
        for path in paths_in(self._root):
            if _NAME.fullmatch(path.name):
                names = {each.name for each in paths_in(path)}
                over = next((mark for mark in (_COMMITTED, _ABORTED) if mark in names), None)
                commit = self.decided(path.name) if over is None else None
                yield StagedTransaction(path.name, self._home(path.name) or "", commit, over)

    def home_of(self, transaction: str) -> str | None:
        """Who decides about a transaction that is here; None: it is not, or nobody is known to."""
        return self._home(transaction) or None

    def _home(self, transaction: str) -> str | None:
        path = self._directory(transaction) / _HOME
        try:
            content = read_whole(path)
        except FileNotFoundError:
            return None
        with contextlib.suppress(ValueError, TypeError, msgpack.UnpackException):
            (home,) = told_by(content, path)
            return str(home)
        name = content.decode("latin-1")  # older versions wrote it by itself
        return name if name.isprintable() else ""

    def decide(self, transaction: str, commit: DecidedCommit) -> None:
        """Say that these parts will be appended, before the first of them is; it survives the machine's death."""
        ends = [[topic, queue_id, end] for (topic, queue_id), end in commit.ends.items()]
        told = [list(commit.parts), ends, commit.log_from, dict(commit.topic_ids), commit.doubtful_to]
        told += [commit.found, commit.absent, {topic: list(each) for topic, each in commit.cut.items()}]
        make_folder(self._directory(transaction))
        replace(self._directory(transaction) / _COMMIT, kept_twice(told))

    def decided(self, transaction: str) -> DecidedCommit | None:
        """What `decide` said last; None: nothing, or it cannot be read."""
        try:
            more: list[Any]
            path = self._directory(transaction) / _COMMIT
            parts, ends, log_from, *more = told_by(read_whole(path), path)
            told = {(str(topic), int(queue_id)): int(end) for topic, queue_id, end in ends}
            # Older versions wrote less.
            known, doubtful_to, found, absent, less = more + [{}, None, None, 0, {}][len(more) :]
            topic_ids = {str(topic): str(topic_id) for topic, topic_id in known.items()}
            doubtful = None if doubtful_to is None else int(doubtful_to)
            counted = None if found is None else int(found)
            places = tuple(map(str, parts)), told, int(log_from)
            cut = {str(topic): (int(gone_from), max(1, int(queues))) for topic, (gone_from, queues) in less.items()}
            return DecidedCommit(*places, topic_ids, doubtful, counted, int(absent), cut)
        except (FileNotFoundError, ValueError, TypeError, AttributeError, msgpack.UnpackException):
            return None

    def lose(self, path: Path, rows: int | None, reason: str) -> None:
        """Say of a chunk's file that so many of its rows do not come to be there; None: it cannot be read how many.

        A loss of power may take it: nothing says then that the chunk is done, and the commit finds it again.
        `close` keeps all of them.
        """
        _put(path.with_suffix(".lost"), msgpack.packb([rows, reason]))

    def attempts(self, chunk: StagedChunk) -> list[tuple[int, int | None]]:
        """The parts of the log in which earlier commits have appended records of `chunk`; None: to the log's end."""
        path = chunk.path.with_suffix(".intent")
        return _attempts(read_whole(path)) if path.exists() else []

    def declare(self, chunk: StagedChunk, log_end: int) -> None:
        """Say that `chunk`, or what is missing of it, is about to be appended behind `log_end`."""
        _write_attempts(chunk.path.with_suffix(".intent"), [*_ended(self.attempts(chunk), log_end), (log_end, None)])

    def interrupt(self, chunk: StagedChunk, log_end: int) -> None:
        """Say that the attempt which was declared last has failed, and what it has appended stands before `log_end`.

        That is written into the place that the attempt has had since it was declared: a full disk does not refuse it.
        """
        path = chunk.path.with_suffix(".intent")
        fd = open_file(path, os.O_RDWR)
        try:
            os.lseek(fd, -_POSITION.size, os.SEEK_END)
            write_all(fd, _POSITION.pack(log_end), path)
        finally:
            close(fd)

    def finish(self, chunk: StagedChunk, log_end: int) -> None:
        """Say that `chunk` is in the log before `log_end`."""
        _put(chunk.path.with_suffix(".done"), _done(log_end))

    def clamp(self, remains: Remains) -> None:
        """At an opening: no attempt is under way, and what was said of places that the log has not is void."""
        folders = paths_in(self._root)
        for folder in folders:
            void = [path for path in paths_in(folder) if path.suffix == ".done" and not _is_done(path, remains)]
            _remove_all_of(folder, void)
        if remains.memory_lost:
            self._clamp_unsynced(remains)
        for folder in folders:
            void = []
            for path in (path for path in paths_in(folder) if path.suffix == ".intent"):
                told = _attempts(read_whole(path))
                kept = [(begin, end) for begin, end in _ended(told, remains.log_end) if remains.has(begin)]
                if not kept:
                    void.append(path)
                elif kept != told:
                    _write_attempts(path, kept, durable=True)
            _remove_all_of(folder, void)

    def _clamp_unsynced(self, remains: Remains) -> None:
        """After a loss of power: a commit that is not through may have appended any of its chunks.

        Queues may end before where they did. What it appends from now on begins there, and is hidden from there on.
        """
        for each in self.transactions():
            if each.commit is not None:
                log_from = min(each.commit.log_from, remains.log_end)
                ends = {
                    (topic, queue_id): min(end, remains.max_offset(topic, queue_id))
                    if remains.deleted_topics.get(topic, 0) <= log_from  # else it is the end of a queue that is gone
                    else end
                    for (topic, queue_id), end in each.commit.ends.items()
                }
                doubtful = replaced(each.commit, ends=ends, log_from=log_from, doubtful_to=remains.log_end)
                self.decide(each.name, doubtful)
                waiting = [file for file in self.listed(each.name, each.commit.parts) if not file.is_done]
                intents = [file.path.with_suffix(".intent") for file in waiting if file.is_attempted]
                _remove_all_of(self._directory(each.name), intents)

    def is_here(self, transaction: str) -> bool:
        """Whether anything is known of it here. Any thread."""
        return self._directory(transaction).is_dir()

    def is_committed(self, transaction: str) -> bool:
        """Whether the whole transaction is in the log."""
        return (self._directory(transaction) / _COMMITTED).exists()

    def close(self, transaction: str) -> None:
        """The whole transaction is in the log, on disk: keep that fact; `empty` may follow. Any thread."""
        directory = self._directory(transaction)
        missing = self._missing_now(transaction)
        make_folder(directory)
        failpoint("staged.before_close")
        replace(directory / _COMMITTED, b"" if missing is None else msgpack.packb(list(missing)))
        failpoint("staged.after_close")

    def missing(self, transaction: str) -> MissingRows | None:
        """What of a transaction that is closed is not there; None: all is, or it is not closed. Any thread."""
        try:
            rows, reason = msgpack.unpackb(read_whole(self._directory(transaction) / _COMMITTED))
            return MissingRows(int(rows), str(reason))
        except (FileNotFoundError, ValueError, TypeError, msgpack.UnpackException):
            return None

    def _missing_now(self, transaction: str) -> MissingRows | None:
        """What of a commit that has come to its end is not there."""
        commit = self.decided(transaction)
        if commit is None:
            return None
        lost = [_lost(path) for path in paths_in(self._directory(transaction)) if path.suffix == ".lost"]
        reasons = dict.fromkeys(reason for _, reason in lost)
        if commit.absent:
            reasons = {f"{commit.absent} rows are not among what is staged": None, **reasons}
        rows = commit.absent + sum(each for each, _ in lost if each is not None)
        if commit.found is not None and any(each is None for each, _ in lost):
            # Of chunks that could be counted when it began, and cannot any more: what the others do not have.
            told = [read_topic_queue(file.path) for file in self.listed(transaction, commit.parts)]
            rows += max(0, commit.found - sum(each[1] for each in told if each is not None))
        return MissingRows(rows, "; ".join(list(reasons)[:_MOST_REASONS])) if rows else None

    def drop(self, transaction: str) -> None:
        """Say of a transaction that it will not be committed; one that was, or is about to be, is left alone."""
        directory = self._directory(transaction)
        if directory.is_dir() and not any((directory / mark).exists() for mark in (_COMMIT, _COMMITTED)):
            replace(directory / _ABORTED, b"")

    def empty(self, transaction: str) -> None:
        """Remove the data of a transaction that is over, if it is; any thread. A loss of power may bring them back."""
        directory = self._directory(transaction)
        if any((directory / mark).exists() for mark in (_COMMITTED, _ABORTED)):
            for path in paths_in(directory):
                if path.suffix or path.name == _COMMIT:
                    unlink(path)

    def put_aside(self, transaction: str) -> None:
        """Forget the mark of one that is over; `remove_swept` removes the folder. Any thread."""
        path = self._directory(transaction)
        if path.is_dir():
            move(path, path.with_name(_SWEPT + path.name))

    def _directory(self, transaction: str) -> Path:
        return self._root / _checked("transaction", transaction)


def swept_in(root: Path) -> list[Path]:
    """The folders below the one of staged writes that `sweep` has put aside."""
    return [path for path in paths_in(root) if path.name.startswith(_SWEPT)]


def _lost(path: Path) -> tuple[int | None, str]:
    """What a file of lost rows says."""
    try:
        rows, reason = msgpack.unpackb(read_whole(path))
        return None if rows is None else int(rows), str(reason)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None, "it cannot be read why"


def _attempts(content: bytes) -> list[tuple[int, int | None]]:
    """What an intent says; nothing if it is no intent."""
    if len(content) % _POSITION.size:
        return []
    places: list[int | None] = [None if place == _OPEN else place for (place,) in _POSITION.iter_unpack(content)]
    ends = places[1::2] + [None] * (len(places) % 2)  # older versions wrote nothing of an attempt that is open
    return [(begin, end) for begin, end in zip(places[::2], ends, strict=True) if begin is not None]


def _ended(attempts: Iterable[tuple[int, int | None]], log_end: int) -> list[tuple[int, int | None]]:
    """The same, and none goes on behind `log_end`."""
    return [(begin, log_end if end is None else min(end, log_end)) for begin, end in attempts]


def _done(log_end: int) -> bytes:
    """What a mark says; a file whose bytes never came to disk has zeros, and says nothing."""
    return _POSITION.pack(log_end) + _POSITION.pack(~log_end)


def _is_done(path: Path, remains: Remains) -> bool:
    """Whether a mark says so of a place that the log has."""
    content = read_whole(path)
    log_end = _POSITION.unpack_from(content)[0] if len(content) == 2 * _POSITION.size else -1
    return content == _done(log_end) and remains.has(log_end)


def _remove_all_of(folder: Path, paths: Iterable[Path]) -> None:
    """Remove files of a folder, for good when this returns."""
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
    """Write a file anew so that the process's death leaves the old content or the new one; a loss of power may take it.

    StoreFull, StoreFailed: the old content stays.
    """
    successor = path.with_name(path.name + ".tmp")
    fd = open_file(successor, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, content, successor)
    finally:
        close(fd)
    move(successor, path)


def remove_swept(folders: Iterable[Path]) -> None:
    """Remove what `sweep` has put aside. Any thread; StoreFailed if the disk fails."""
    for folder in folders:
        remove_tree(folder)


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, "1 to 64 letters, digits, _ or -", name)
    return name
