"""Records that wait for their transaction's commit: files beside the log, invisible to every reader until then.

    <store>/raymq/staged/<transaction>/<part>.<number>.chunk     u4 header length | msgpack header | records
    <store>/raymq/staged/<transaction>/<part>.<number>.intent    two i8 for each attempt: the log's end before the chunk
                                                                 was appended, and when that had failed
    <store>/raymq/staged/<transaction>/<part>.<number>.done      i8: the chunk is in the log, which ended there then
    <store>/raymq/staged/<transaction>/committed                 all of them are, and on disk

A chunk is whole or absent (written under another name, then renamed). The intent makes a commit repeatable: nothing is
appended meanwhile but the chunk, so what lies between the two places of an attempt is the chunk's own, and all else is
not, however alike. After a crash the second place is where the log ended when the store was opened next. What a loss of
power takes from the log is no longer done, so the data stay until the log has all of them on disk.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
import numpy.typing as npt

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.files.fileutil import (
    close,
    fdatasync,
    make_folder,
    open_file,
    paths_in,
    read_whole,
    remove,
    remove_tree,
    rename,
    replace,
    write_all,
)
from raymq.storage.tables.remains import Remains

#: What a transaction or a part may be called: it becomes a file's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_LENGTH = struct.Struct(">I")
_POSITION = struct.Struct(">q")
#: Where an attempt ends that has not ended.
_OPEN = -1
#: Transactions that nothing was added to for so long are swept: their writer is gone.
ABANDONED_SECONDS = 24 * 3600.0
#: How the name of a folder begins that is being removed; no transaction is called so.
_SWEPT = "."


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """One chunk on disk: records of one queue."""

    topic: str
    queue_id: int
    records: memoryview
    sizes: npt.NDArray[np.int32]
    path: Path


class StagedRecords:
    """The staged files of one store directory. One thread at a time."""

    def __init__(self, store_directory: Path) -> None:
        self._root = store_directory / "raymq" / "staged"

    def add(
        self,
        transaction: str,
        part: str,
        number: int,
        lane: tuple[str, int],
        records: bytes | memoryview,
        sizes: npt.NDArray[np.int32],
    ) -> None:
        """Keep chunk `number` of `part`; the same again replaces it. It survives SIGKILL when this returns."""
        directory = self._directory(transaction)
        if not 0 <= number < 1_000_000:
            raise InvalidInput("number", "0..999999", number)
        header = msgpack.packb([lane[0], lane[1], sizes.astype("<i4").tobytes()])
        make_folder(directory)
        data = b"".join((_HEADER_LENGTH.pack(len(header)), header, records))
        replace(directory / f"{_checked('part', part)}.{number:06d}.chunk", data)

    def chunks(self, transaction: str, part: str) -> list[StagedChunk]:
        """The chunks of `part` that are not yet in the log, in order.

        StoreCorrupt: one cannot be read; staging it again mends it.
        """
        beginning, names = f"{_checked('part', part)}.", self._names(transaction)
        paths = [
            self._directory(transaction) / name
            for name in names
            if name.startswith(beginning)
            and name.endswith(".chunk")
            and name.removesuffix("chunk") + "done" not in names
        ]
        return [_read_chunk(path) for path in paths]

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
            fdatasync(fd, path)
        finally:
            close(fd)

    def finish(self, chunk: StagedChunk, log_end: int) -> None:
        """Say that `chunk` is in the log before `log_end`."""
        replace(chunk.path.with_suffix(".done"), _POSITION.pack(log_end))

    def clamp(self, remains: Remains) -> None:
        """At an opening: no attempt is under way, and what was said of places that the log has not is void."""
        all_paths = [path for folder in paths_in(self._root) for path in paths_in(folder)]
        for path in (path for path in all_paths if path.suffix == ".done"):
            content = read_whole(path)
            if len(content) != _POSITION.size or not remains.has(_POSITION.unpack(content)[0]):
                remove(path)
        for path in (path for path in all_paths if path.suffix == ".intent"):
            told = _attempts(read_whole(path))
            kept = [(begin, end) for begin, end in _ended(told, remains.log_end) if remains.has(begin)]
            if not kept:
                remove(path)
            elif kept != told:
                _write_attempts(path, kept)

    def is_committed(self, transaction: str) -> bool:
        """Whether the whole transaction is in the log."""
        return (self._directory(transaction) / "committed").exists()

    def close(self, transaction: str) -> None:
        """The whole transaction is in the log, on disk: keep that fact, drop the data."""
        directory = self._directory(transaction)
        make_folder(directory)
        replace(directory / "committed", b"")
        for path in paths_in(directory):
            if path.suffix:
                remove(path)

    def drop(self, transaction: str) -> None:
        """Forget a transaction that will not be committed; one that was is left alone."""
        if not self.is_committed(transaction):
            remove_tree(self._directory(transaction))

    def sweep(self, now: float | None = None) -> list[Path]:
        """Put aside what is older than `ABANDONED_SECONDS`; the folders that `remove_swept` removes."""
        limit = (time.time() if now is None else now) - ABANDONED_SECONDS
        for path in paths_in(self._root):
            if not path.name.startswith(_SWEPT) and path.stat().st_mtime < limit:
                rename(path, path.with_name(_SWEPT + path.name))
        return swept_in(self._root)

    def _names(self, transaction: str) -> dict[str, None]:
        """Of its files, sorted."""
        return dict.fromkeys(path.name for path in paths_in(self._directory(transaction)))

    def _directory(self, transaction: str) -> Path:
        return self._root / _checked("transaction", transaction)


def swept_in(root: Path) -> list[Path]:
    """The folders below the one of staged writes that `sweep` has put aside."""
    return [path for path in paths_in(root) if path.name.startswith(_SWEPT)]


def _read_chunk(path: Path) -> StagedChunk:
    data = memoryview(read_whole(path))
    try:
        (length,) = _HEADER_LENGTH.unpack_from(data)
        start = _HEADER_LENGTH.size + length
        topic, queue_id, packed = msgpack.unpackb(data[_HEADER_LENGTH.size : start])
        sizes = np.frombuffer(packed, "<i4")
        if not (isinstance(topic, str) and isinstance(queue_id, int) and int(sizes.sum()) == len(data) - start):
            raise ValueError("topic, queue and sizes do not fit the records")
    except (struct.error, ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"no staged chunk: {error}") from None
    return StagedChunk(topic, queue_id, data[start:], sizes, path)


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


def _write_attempts(path: Path, attempts: Iterable[tuple[int, int | None]]) -> None:
    places = (_OPEN if place is None else place for attempt in attempts for place in attempt)
    replace(path, b"".join(map(_POSITION.pack, places)))


def remove_swept(folders: Iterable[Path]) -> None:
    """Remove what `sweep` has put aside. Any thread; StoreFailed if the disk fails."""
    for folder in folders:
        remove_tree(folder)


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, "1 to 64 letters, digits, _ or -", name)
    return name
