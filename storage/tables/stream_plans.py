"""Plans of streams: which messages each batch of a streaming query reads, kept until the batch after next is planned.

    <store>/raymq/streams/<stream>/<query>     msgpack [turn, [[number of the batch, its plan], ...]], the two newest

The turn is a number that rises with each plan of this broker: it says which query was planned last. A clock does not,
for it may be wrong, and then set right.

A plan is bytes, of which nothing is known here. The first one that is put for a batch stands; who puts another is given
that one. So all tasks of a batch read the same messages, and a batch that is run again reads them once more.
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
from raymq.storage.tables.kept_twice import PAYLOAD_AT, kept_twice, told_by

#: The batch that runs, and the one before it, where it goes on.
KEPT_BATCHES: Final = 2
#: So many queries of one stream are known, those whose batches were planned last;
MOST_QUERIES: Final = 32
#: and so many streams.
MOST_STREAMS: Final = 10_000
#: The longest plan: some 40,000 queues.
MOST_PLAN_BYTES: Final = 1 << 20
#: What a stream or a query may be called: it becomes a file's name.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Batches are numbered by 64 bits.
_BATCHES: Final = 1 << 63

#: A file has a turn and plans; so many bytes tell the turn.
_PARTS: Final = 2
_HEAD_BYTES: Final = PAYLOAD_AT + 16
#: Before all others.
_NO_TURN: Final = -1

#: The number of a batch, and its plan.
Planned = tuple[int, bytes]


class StreamPlans:
    """The plans that the broker of one store directory keeps. Any thread."""

    def __init__(self, store_directory: Path) -> None:
        self._root = store_directory / "raymq" / "streams"
        self._lock = threading.Lock()
        #: The turn of each stream's last plan, and the newest of all; read when one is planned first.
        self._turns: dict[str, int] | None = None
        self._turn = 0

    def kept(self, stream: str, query: str) -> list[Planned]:
        """What is planned of a query, the older batch first; nothing if the query is not known.

        Raises:
            InvalidInput: no such name can be. StoreCorrupt, StoreBusy, StoreFailed: it cannot be read (now).
        """
        return _read(self._path(stream, query))[1]

    def put(self, stream: str, query: str, batch: int, plan: bytes) -> bytes:
        """Plan a batch, unless it is planned; the plan that stands, which survives the machine's death then.

        Raises:
            InvalidInput: no such name or number can be, the plan is too long, or the batch is older than those that are
                kept.
            StoreFull, StoreFailed: it could not be written. As `kept` besides.
        """
        path = self._path(stream, query)
        if not 0 <= batch < _BATCHES:
            raise InvalidInput("batch", "a whole number of 63 bits", batch)
        if len(plan) > MOST_PLAN_BYTES:
            raise InvalidInput("plan", f"at most {MOST_PLAN_BYTES} bytes", len(plan))
        with self._lock:
            known = _read(path)[1]
            for number, standing in known:
                if number == batch:
                    return standing
            if known and batch < known[-1][0]:
                raise InvalidInput("batch", f"one of those that are kept, or above {known[-1][0]}", batch)
            turns = self._known_turns()
            if not known:
                self._make_place(path, turns)
            self._turn += 1
            replace(path, kept_twice([self._turn, [*known, (batch, plan)][-KEPT_BATCHES:]]))
            turns[stream] = self._turn
        return plan

    def latest_query(self, stream: str) -> str | None:
        """The query of a stream whose batch was planned last; None if none was. Raises as `kept`."""
        planned = _turns_in(self._root / _checked("stream", stream))
        return max(planned)[1] if planned else None

    def _known_turns(self) -> dict[str, int]:
        if self._turns is None:
            planned = {folder.name: _turns_in(folder) for folder in paths_in(self._root)}
            self._turns = {stream: max(queries, default=(_NO_TURN, ""))[0] for stream, queries in planned.items()}
            self._turn = max(self._turns.values(), default=0)
        return self._turns

    def _make_place(self, path: Path, turns: dict[str, int]) -> None:
        """For one more query, and perhaps one more stream: those that were planned least lately go."""
        if not path.parent.is_dir():
            for name in sorted(turns, key=turns.__getitem__)[: max(0, len(turns) + 1 - MOST_STREAMS)]:
                remove_tree(self._root / name)
                del turns[name]
            make_folder(path.parent)
        queries = _turns_in(path.parent)
        for _, name in sorted(queries)[: max(0, len(queries) + 1 - MOST_QUERIES)]:
            remove(path.parent / name)

    def _path(self, stream: str, query: str) -> Path:
        return self._root / _checked("stream", stream) / _checked("query", query)


def _read(path: Path) -> tuple[int, list[Planned]]:
    """The turn and the plans; none where there is no file."""
    try:
        content = read_whole(path)
    except FileNotFoundError:
        return _NO_TURN, []
    try:
        turn, plans = told_by(content, path)
        known = [(batch, plan) for batch, plan in plans]
        if (
            type(turn) is not int
            or not known
            or not all(type(batch) is int and isinstance(plan, bytes) for batch, plan in known)
        ):
            raise ValueError("it has no plans")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"no plans of a stream: {error}") from None
    return turn, known


def _turns_in(folder: Path) -> list[tuple[int, str]]:
    """The turns and the names of a stream's queries. A crash may leave a file that was to take the place of another."""
    return [(_turn_of(folder / name), name) for entry in entries_of(folder) if _NAME.fullmatch(name := entry.name)]


def _turn_of(path: Path) -> int:
    """When it was planned last; before all others, where that cannot be read."""
    try:
        content, head = read_head(path, _HEAD_BYTES), msgpack.Unpacker()
        # Older versions had no frame around it, whose length has a zero in front.
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
