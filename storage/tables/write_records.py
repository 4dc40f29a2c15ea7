"""What the home of staged writes keeps of them: one small file for each write, and one for each series of writes.

    <store>/raymq/writes/<transaction>     msgpack: open, committed (which parts on which broker, how many rows) or
                                           aborted. That this file says "committed" is the commit of the whole write.
    <store>/raymq/series/<hash of name>    msgpack [name, number, transaction, rows] of the last write that was
                                           committed; kept for good

Each file is replaced as a whole and durable when the call returns.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files.fileutil import make_folder, paths_in, read_whole, replace, unlink
from raymq.storage.tables.kept_twice import kept_twice, told_by

#: What a transaction may be called: it becomes a file's name.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The longest name of a series, in characters.
MOST_SERIES_NAME: Final = 512


class WriteDecision(enum.Enum):
    """What its home has decided about a write."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One write, as its home knows it.

    Attributes:
        touched: when somebody was last known to care for it, or when it was decided; in seconds that are counted
            over restarts (`counted_time`).
        series, number: which one of which series; "" and 0: of none.
        parts: by broker the parts that are committed, and how many rows each has there.
        finished: the brokers that have all of theirs in the log, on disk, ...
        missing: ... but for so many rows, for this reason, by broker.
        accepted: by broker how many missing rows the writer has said to do without.
    """

    transaction: str
    topic: str
    decision: WriteDecision
    touched: float
    series: str = ""
    number: int = 0
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    missing: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(sum(parts.values()) for parts in self.parts.values())

    @property
    def unfinished(self) -> list[str]:
        """The brokers that have something to append, and have not said that it is done."""
        return sorted(self.parts.keys() - self.finished)


@dataclass(frozen=True, slots=True)
class SeriesEnd:
    """The last write of a series that was committed."""

    series: str
    number: int
    transaction: str
    rows: int


class WriteRecords:
    """The files of one store directory. One thread at a time."""

    def __init__(self, store_directory: Path) -> None:
        self._writes = store_directory / "raymq" / "writes"
        self._series = store_directory / "raymq" / "series"

    def put(self, record: WriteRecord) -> None:
        """Keep what is known of a write; StoreFull, StoreFailed: what was kept before stays."""
        content = {
            "topic": record.topic,
            "decision": record.decision.value,
            "touched": record.touched,
            "series": record.series,
            "number": record.number,
            "parts": {broker: dict(parts) for broker, parts in record.parts.items()},
            "finished": sorted(record.finished),
            "missing": {broker: list(told) for broker, told in record.missing.items()},
            "accepted": dict(record.accepted),
        }
        path = self._path(record.transaction)
        make_folder(self._writes)
        failpoint("write.before_record")
        replace(path, kept_twice([content]))
        failpoint("write.after_record")

    def remove(self, transaction: str) -> None:
        """Forget a write; a loss of power may bring it back."""
        unlink(self._path(transaction))

    def transactions(self) -> list[str]:
        """The writes of which something is kept."""
        return [path.name for path in paths_in(self._writes) if _NAME.fullmatch(path.name)]

    def read(self, transaction: str) -> WriteRecord:
        """What is kept of a write; StoreCorrupt if that cannot be read, FileNotFoundError if it is nothing."""
        return _read(self._path(transaction))

    def put_end(self, end: SeriesEnd) -> None:
        """Keep the last write of a series; raises as `put`."""
        make_folder(self._series)
        failpoint("write.before_series")
        replace(self._series_path(end.series), kept_twice([end.series, end.number, end.transaction, end.rows]))

    def end(self, series: str) -> SeriesEnd | None:
        """The last write of a series; None: none was committed. StoreCorrupt if it cannot be read."""
        path = self._series_path(series)
        try:
            content = read_whole(path)
        except FileNotFoundError:
            return None
        try:
            name, number, transaction, rows = told_by(content, path)
            if name != series:
                raise ValueError("it is of another series")
            return SeriesEnd(series, int(number), str(transaction), int(rows))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StoreCorrupt(str(path), 0, f"no series of writes: {error}") from None

    def _path(self, transaction: str) -> Path:
        return self._writes / checked_transaction(transaction)

    def _series_path(self, series: str) -> Path:
        if not 0 < len(series) <= MOST_SERIES_NAME:
            raise InvalidInput("series", f"1 to {MOST_SERIES_NAME} characters", series)
        return self._series / hashlib.blake2b(series.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def checked_transaction(name: str) -> str:
    """`name`; InvalidInput if no transaction can be called so."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("transaction", "1 to 64 letters, digits, _ or -", name)
    return name


def _read(path: Path) -> WriteRecord:
    try:
        kept = told_by(read_whole(path), path)
        told: Mapping[str, Any] = kept[0] if isinstance(kept, list) else kept  # older versions kept it by itself
        return WriteRecord(
            path.name,
            str(told["topic"]),
            WriteDecision(told["decision"]),
            # Older versions wrote down wall times, which say nothing here: such a write counts as touched just now.
            float(told.get("touched", math.inf)),
            str(told["series"]),
            int(told["number"]),
            {
                str(broker): {str(part): int(rows) for part, rows in parts.items()}
                for broker, parts in told["parts"].items()
            },
            frozenset(map(str, told["finished"])),
            # Older versions wrote none.
            {str(broker): (int(rows), str(reason)) for broker, (rows, reason) in told.get("missing", {}).items()},
            {str(broker): int(rows) for broker, rows in told.get("accepted", {}).items()},
        )
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"no record of a write: {error}") from None
