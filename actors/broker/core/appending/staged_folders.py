"""Convert the folders of staged rows of format 2 into log records.

    raymq/staged/<transaction>/<part>.<number>.chunk     the encoded chunk (`staged_chunk`)
    raymq/staged/<transaction>/<part>.<number>.intent    two i8 for each attempt: begin and end; -1: it has not ended
    raymq/staged/<transaction>/<part>.<number>.done      i8: where the log ended when the chunk was in it, and its
                                                         inverse
    raymq/staged/<transaction>/<part>.<number>.lost      msgpack: how many rows are lost (nil: unknown), and why
    raymq/staged/<transaction>/home                      `kept_twice`: the coordinator
    raymq/staged/<transaction>/commit                    `kept_twice`: the decision
    raymq/staged/<transaction>/committed, aborted        the outcome; msgpack or empty: missing rows, and why

1. The table gets all transactions, clamped to what recovery has found; their chunks have no places yet.
2. `raymq/staged` is renamed to `raymq/staged_taken`. From now on the log may grow.
3. The chunks are appended to the log; when they are on disk, the table gets their places.
4. The folders are removed.

A kill leaves a step that the next start repeats: before the rename all of step 1, afterwards the chunks without places.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.actors.broker.core.appending.staged_chunk_log import StagedChunkLog
from raymq.storage.errors import StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.mirrored_file import decode_mirrored
from raymq.storage.tables.staged_chunk import (
    Attempt,
    ChunkEntry,
    ChunkKey,
    MissingRows,
    Places,
    chunk_name,
    clamped_progress,
    decode_chunk,
    decode_header,
)
from raymq.storage.tables.staged_records import (
    ABORTED,
    COMMITTED,
    CommitDecision,
    StagedRecords,
    clamped_commit,
    read_decision,
)

_TRANSACTION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHUNK: Final = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9]{6})\.chunk")
_POSITION: Final = struct.Struct(">q")
_DONE: Final = struct.Struct(">qq")
#: About how many bytes are appended before their files are removed.
_BATCH_BYTES: Final = 64 << 20
_ERRORS: Final = (FileNotFoundError, ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException)
_log = logging.getLogger(__name__)


def convert(store: Store, table: StagedRecords, log: StagedChunkLog) -> None:
    """Convert the folders of a store that has just been opened, if it has any.

    Raise StoreFull, StoreFailed or StoreBusy if it could not be done now; nothing is lost.
    """
    folder, taken = StorePaths(store.directory).former_staged
    if folder.is_dir():
        for path in _transactions_in(folder):
            _take_over(path, table, store.recovery_bounds)
        table.sync()
        failpoint("staged_folders.before_rename")
        fileutil.move(folder, taken)
        fileutil.sync_directory(folder.parent)
    if taken.is_dir():
        failpoint("staged_folders.after_rename")
        with store.bypass_disk_limit():
            _append_chunks(taken, store, table, log)
        failpoint("staged_folders.before_removal")
        fileutil.remove_tree(taken)
        fileutil.sync_directory(folder.parent)


def _transactions_in(folder: Path) -> Iterator[Path]:
    return (path for path in fileutil.paths_in(folder) if _TRANSACTION.fullmatch(path.name))


def _chunks_in(folder: Path) -> Iterator[tuple[ChunkKey, Path]]:
    for path in fileutil.paths_in(folder):
        if (found := _CHUNK.fullmatch(path.name)) is not None:
            yield (found[1], int(found[2])), path


def _take_over(folder: Path, table: StagedRecords, bounds: RecoveryBounds) -> None:
    """Record a transaction in the table, without the places of its chunks."""
    names, coordinator = set(fileutil.names_in(folder)), _home(folder / "home")
    if COMMITTED in names:
        table.take_over_end(folder.name, coordinator, COMMITTED, _missing(folder / COMMITTED))
    elif ABORTED in names:
        table.take_over_end(folder.name, coordinator, ABORTED, None)
    else:
        chunks = [chunk for key, path in _chunks_in(folder) if (chunk := _chunk(key, path)) is not None]
        commit = _commit(folder / "commit", chunks)
        is_decided = commit is not None
        clamped = [clamped_progress(chunk, bounds, is_decided=is_decided) for chunk in chunks]
        table.take_over(folder.name, coordinator, clamped, None if commit is None else clamped_commit(commit, bounds))


def _append_chunks(taken: Path, store: Store, table: StagedRecords, log: StagedChunkLog) -> None:
    """Append the chunks that have no places yet, and remove their files."""
    moved: list[tuple[str, ChunkKey, Places, Path]] = []
    left = _BATCH_BYTES
    for folder in _transactions_in(taken):
        for key, path in _chunks_in(folder):
            chunk = table.chunk(folder.name, key)
            if chunk is None or chunk.places:
                continue
            name = chunk_name(folder.name, *key)
            content = fileutil.read_whole(path)
            try:
                decode_chunk(content, name)
            except StoreCorrupt as error:  # reported again as missing if the write is committed
                _log.error("%s: staged rows are lost: %s", path, error)
                continue
            moved.append((folder.name, key, log.append(name, content), path))
            left -= len(content)
            if left <= 0:
                _record_places(moved, store, table)
                left = _BATCH_BYTES
    _record_places(moved, store, table)


def _record_places(moved: list[tuple[str, ChunkKey, Places, Path]], store: Store, table: StagedRecords) -> None:
    """Record the places of chunks that were appended, remove their files, and empty the list."""
    store.flush()
    failpoint("staged_folders.before_places")
    for transaction, key, places, _ in moved:
        table.move(transaction, key, places)
    table.sync()
    for *_, path in moved:
        fileutil.unlink(path)
    moved.clear()


def _home(path: Path) -> str:
    try:
        content = fileutil.read_whole(path)
    except FileNotFoundError:
        return ""
    with contextlib.suppress(*_ERRORS):
        (coordinator,) = decode_mirrored(content, path)
        return str(coordinator)
    name = content.decode("latin-1")  # the oldest versions wrote only the name
    return name if name.isprintable() else ""


def _chunk(key: ChunkKey, path: Path) -> ChunkEntry | None:
    """Return a chunk and its progress, or None without its row count."""
    found = _header(path)
    if found is None:
        _log.error("%s: staged rows are lost: not a staged chunk", path)
        return None
    (topic, queue_id, *others), rows = found
    incarnation, topic_id = (*others, *(0, None)[len(others) :])[:2]  # older versions wrote less
    return ChunkEntry(
        *key,
        topic,
        queue_id,
        rows,
        int(incarnation),
        None if topic_id is None else str(topic_id),
        attempts=_attempts(path.with_suffix(".intent")),
        done_at=_done_at(path.with_suffix(".done")),
        lost=_lost(path.with_suffix(".lost"), rows),
    )


def _header(path: Path) -> tuple[list[Any], int] | None:
    head = fileutil.read_head(path, 4)
    return decode_header(fileutil.read_head(path, 4 + int.from_bytes(head, "big"))) if len(head) == 4 else None


def _attempts(path: Path) -> tuple[Attempt, ...]:
    try:
        places = [place for (place,) in _POSITION.iter_unpack(fileutil.read_whole(path))]
    except (FileNotFoundError, struct.error):
        return ()
    ends = [None if place < 0 else place for place in places[1::2]]
    ends += [None] * (len(places) % 2)  # the oldest versions wrote no end of an open attempt
    return tuple(zip(places[::2], ends, strict=True))


def _done_at(path: Path) -> int | None:
    """Return where the log ended; None without a mark or its bytes."""
    try:
        log_end, inverse = _DONE.unpack(fileutil.read_whole(path))
    except (FileNotFoundError, struct.error):
        return None
    return int(log_end) if log_end == ~inverse else None


def _lost(path: Path, rows_of_chunk: int) -> MissingRows | None:
    try:
        rows, reason = msgpack.unpackb(fileutil.read_whole(path))
        return MissingRows(rows_of_chunk if rows is None else int(rows), str(reason))
    except FileNotFoundError:
        return None
    except _ERRORS:
        return MissingRows(rows_of_chunk, "the reason cannot be read")


def _missing(path: Path) -> MissingRows | None:
    with contextlib.suppress(*_ERRORS):
        rows, reason = msgpack.unpackb(fileutil.read_whole(path))
        return MissingRows(int(rows), str(reason))
    return None


def _commit(path: Path, chunks: list[ChunkEntry]) -> CommitDecision | None:
    """Return the decision; None if there is none or it cannot be read.

    Rows that were there at the decision and of which even the number is lost now count as never staged.
    """
    try:
        parts, ends, log_from, *more = decode_mirrored(fileutil.read_whole(path), path)
        # Older versions wrote less.
        topic_ids, uncertain_until, found, absent, cut = more + [{}, None, None, 0, {}][len(more) :]
        known = sum(chunk.rows for chunk in chunks if chunk.part in parts)
        absent = int(absent) + (0 if found is None else max(0, int(found) - known))
        return read_decision([parts, ends, log_from, topic_ids, uncertain_until, absent, cut])
    except _ERRORS:
        return None
