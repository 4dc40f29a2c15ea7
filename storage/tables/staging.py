"""Records that wait for their transaction's commit: files beside the log, invisible to every reader until then.

    <store>/raymq/staged/<transaction>/<part>.<number>.chunk     u4 header length | msgpack header | records
    <store>/raymq/staged/<transaction>/<part>.<number>.intent    i8: the log's end before the chunk was appended
    <store>/raymq/staged/<transaction>/<part>.<number>.done      i8: the chunk is in the log, which ended there then
    <store>/raymq/staged/<transaction>/committed                 all of them are, and on disk

A chunk is whole or absent (written under another name, then renamed). The intent makes a commit repeatable: after a
crash between append and `done`, only the log behind that position has to be searched for the chunk's records. What a
loss of power takes from the log is no longer done, so the data stay until the log has all of them on disk.
"""

from __future__ import annotations

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
from raymq.storage.files.fileutil import make_folder, read_whole, remove, remove_tree, rename, replace
from raymq.storage.tables.remains import Remains

#: What a transaction or a part may be called: it becomes a file's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_LENGTH = struct.Struct(">I")
_POSITION = struct.Struct(">q")
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
        paths = sorted(self._directory(transaction).glob(f"{_checked('part', part)}.*.chunk"))
        return [_read_chunk(path) for path in paths if not path.with_suffix(".done").exists()]

    def intent(self, chunk: StagedChunk) -> int | None:
        """Where the log ended when an earlier commit was about to append `chunk`; None if none was."""
        path = chunk.path.with_suffix(".intent")
        return int(_POSITION.unpack(read_whole(path))[0]) if path.exists() else None

    def declare(self, chunk: StagedChunk, log_end: int) -> None:
        """Say that `chunk` is about to be appended behind `log_end`."""
        replace(chunk.path.with_suffix(".intent"), _POSITION.pack(log_end))

    def finish(self, chunk: StagedChunk, log_end: int) -> None:
        """Say that `chunk` is in the log before `log_end`."""
        replace(chunk.path.with_suffix(".done"), _POSITION.pack(log_end))

    def clamp(self, remains: Remains) -> None:
        """After a crash: forget what was said of places that the log does not reach (any more); see `remains`."""
        for path in (*self._root.glob("*/*.intent"), *self._root.glob("*/*.done")):
            content = read_whole(path)
            if len(content) != _POSITION.size or not remains.has(_POSITION.unpack(content)[0]):
                remove(path)

    def is_committed(self, transaction: str) -> bool:
        """Whether the whole transaction is in the log."""
        return (self._directory(transaction) / "committed").exists()

    def close(self, transaction: str) -> None:
        """The whole transaction is in the log, on disk: keep that fact, drop the data."""
        directory = self._directory(transaction)
        make_folder(directory)
        replace(directory / "committed", b"")
        for path in directory.glob("*.*"):
            remove(path)

    def drop(self, transaction: str) -> None:
        """Forget a transaction that will not be committed; one that was is left alone."""
        if not self.is_committed(transaction):
            remove_tree(self._directory(transaction))

    def sweep(self, now: float | None = None) -> list[Path]:
        """Put aside what is older than `ABANDONED_SECONDS`; the folders that `remove_swept` removes."""
        limit = (time.time() if now is None else now) - ABANDONED_SECONDS
        found = list(self._root.glob("*"))
        for path in found:
            if not path.name.startswith(_SWEPT) and path.stat().st_mtime < limit:
                rename(path, path.with_name(_SWEPT + path.name))
        return list(self._root.glob(f"{_SWEPT}*"))

    def _directory(self, transaction: str) -> Path:
        return self._root / _checked("transaction", transaction)


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


def remove_swept(folders: Iterable[Path]) -> None:
    """Remove what `sweep` has put aside. Any thread; StoreFailed if the disk fails."""
    for folder in folders:
        remove_tree(folder)


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, "1 to 64 letters, digits, _ or -", name)
    return name
