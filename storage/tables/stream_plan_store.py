"""Plans of streaming queries: which messages each batch of a query reads.

A plan is kept until the batch after next is planned.

    <store>/raymq/streams/<stream>/<query>     msgpack [turn, [[number of the batch, its plan], ...]], the two newest

The turn is a number that increases with each plan of this broker: it shows which query was planned last. A clock cannot
show this, because it may be wrong and then be corrected.

A plan is bytes without a meaning here. The first plan that is put for a batch is kept, and a client that puts another
plan receives the kept one. So all tasks of a batch read the same messages, and a batch that is run again reads them
again.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Final

import msgpack

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.files.fileutil import (
    entries_of,
    make_folder,
    paths_in,
    read_head,
    read_whole,
    remove,
    remove_tree,
    replace,
)
from raymq.storage.tables.mirrored_file import PAYLOAD_AT, decode_mirrored, kept_twice

#: The running batch, and the one before it, in case it is continued.
KEPT_BATCHES: Final = 2
#: The most queries of one stream that are kept, those whose batches were planned last.
MAX_QUERIES: Final = 32
#: The most streams that are kept.
MAX_STREAMS: Final = 10_000
#: The longest plan in bytes, enough for some 40,000 queues.
MAX_PLAN_BYTES: Final = 1 << 20
#: The valid names of streams and queries, which become file names.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The limit of batch numbers, which are signed 64-bit numbers.
_BATCHES: Final = 1 << 63

#: A file has two parts, turn and plans; the first `_HEAD_BYTES` bytes contain the turn.
_PARTS: Final = 2
_HEAD_BYTES: Final = PAYLOAD_AT + 16
#: The turn of a query without a readable turn; it is before all others.
_NO_TURN: Final = -1

#: The number of a batch, and its plan.
Planned = tuple[int, bytes]


class StreamPlanStore:
    """The plans of the broker of one store directory; any thread."""

    def __init__(self, store_directory: Path) -> None:
        self._root = store_directory / "raymq" / "streams"
        self._lock = threading.Lock()
        #: The turn of each stream's last plan, and the newest of all; loaded before the first plan is written.
        self._turns: dict[str, int] | None = None
        self._turn = 0

    def kept(self, stream: str, query: str) -> list[Planned]:
        """Return the kept plans of a query, the older batch first; empty without plans.

        Raises:
            InvalidInput: a name is not valid. StoreCorrupt, StoreBusy, StoreFailed: it cannot be read (now).
        """
        return _read(self._path(stream, query))[1]

    def put(self, stream: str, query: str, batch: int, plan: bytes) -> bytes:
        """Store the plan of a batch unless it has one; return the kept plan.

        The kept plan survives a machine crash.

        Raises:
            InvalidInput: a name or number is not valid, the plan is too long, or the batch is older than those that are
                kept.
            StoreFull, StoreFailed: it could not be written. Others as `kept`.
        """
        path = self._path(stream, query)
        if not 0 <= batch < _BATCHES:
            raise InvalidInput("batch", "a whole number of 63 bits", batch)
        if len(plan) > MAX_PLAN_BYTES:
            raise InvalidInput("plan", f"at most {MAX_PLAN_BYTES} bytes", len(plan))
        with self._lock:
            known = _read(path)[1]
            for number, standing in known:
                if number == batch:
                    return standing
            if known and batch < known[-1][0]:
                raise InvalidInput("batch", f"a kept batch, or above {known[-1][0]}", batch)
            turns = self._known_turns()
            if not known:
                self._make_place(path, turns)
            self._turn += 1
            replace(path, kept_twice([self._turn, [*known, (batch, plan)][-KEPT_BATCHES:]]))
            turns[stream] = self._turn
        return plan

    def latest_query(self, stream: str) -> str | None:
        """Return the query of a stream that was planned last, or None.

        Raise as `kept` does.
        """
        planned = _turns_in(self._root / _checked("stream", stream))
        return max(planned)[1] if planned else None

    def _known_turns(self) -> dict[str, int]:
        if self._turns is None:
            planned = {folder.name: _turns_in(folder) for folder in paths_in(self._root)}
            self._turns = {stream: max(queries, default=(_NO_TURN, ""))[0] for stream, queries in planned.items()}
            self._turn = max(self._turns.values(), default=0)
        return self._turns

    def _make_place(self, path: Path, turns: dict[str, int]) -> None:
        """Make room for a new query, and for its stream if that is new, too.

        The least recently planned ones are removed.
        """
        if not path.parent.is_dir():
            for name in sorted(turns, key=turns.__getitem__)[: max(0, len(turns) + 1 - MAX_STREAMS)]:
                remove_tree(self._root / name)
                del turns[name]
            make_folder(path.parent)
        queries = _turns_in(path.parent)
        for _, name in sorted(queries)[: max(0, len(queries) + 1 - MAX_QUERIES)]:
            remove(path.parent / name)

    def _path(self, stream: str, query: str) -> Path:
        return self._root / _checked("stream", stream) / _checked("query", query)


def _read(path: Path) -> tuple[int, list[Planned]]:
    """Return the turn and plans of a file; no plans without a file."""
    try:
        content = read_whole(path)
    except FileNotFoundError:
        return _NO_TURN, []
    try:
        turn, plans = decode_mirrored(content, path)
        known = [(batch, plan) for batch, plan in plans]
        if (
            type(turn) is not int
            or not known
            or not all(type(batch) is int and isinstance(plan, bytes) for batch, plan in known)
        ):
            raise ValueError("there are no plans")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"not the plans of a stream: {error}") from None
    return turn, known


def _turns_in(folder: Path) -> list[tuple[int, str]]:
    """Return the turns and names of a stream's queries.

    Other files in the folder are skipped: a crash may leave a temporary file that was to replace another.
    """
    return [(_turn_of(folder / name), name) for entry in entries_of(folder) if _NAME.fullmatch(name := entry.name)]


def _turn_of(path: Path) -> int:
    """Return the turn of a query's last plan, or `_NO_TURN` if it cannot be read."""
    try:
        content, head = read_head(path, _HEAD_BYTES), msgpack.Unpacker()
        # Older versions had no frame around it; a frame begins with a length whose first byte is zero.
        head.feed(content[PAYLOAD_AT:] if content.startswith(b"\0") else content)
        if head.read_array_header() == _PARTS and type(turn := head.unpack()) is int:
            return turn
    except (FileNotFoundError, ValueError, TypeError, msgpack.UnpackException):
        pass
    return _NO_TURN


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, "1 to 64 letters, digits, _ or -", name)
    return name
