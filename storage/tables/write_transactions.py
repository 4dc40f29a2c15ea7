"""The coordinator's records of staged writes.

There is one small file for each write, and one for each series of writes:

    <store>/raymq/writes/<transaction>     msgpack: open, committed (which parts on which broker, how many rows) or
                                           aborted. That this file says "committed" is the commit of the whole write.
    <store>/raymq/series/<hash of name>    msgpack [name, number, transaction, rows] of the last committed write of the
                                           series; kept forever

Each file is replaced as a whole and is durable when the call returns.
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
from raymq.storage.tables.mirrored_file import decode_mirrored, kept_twice

#: The valid names of transactions, which become file names.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The longest name of a series, in characters.
MAX_SERIES_NAME: Final = 512


class WriteState(enum.Enum):
    """The coordinator's decision about a write."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """The coordinator's record of one write.

    Attributes:
        touched: the time of the last known activity, or of the decision; in seconds that are counted across restarts
            (`counted_time`).
        series, number: the write's series and its number in it; "" and 0 without a series.
        parts: the committed parts by broker, and how many rows each part has there.
        finished: the brokers that have all of their parts in the log, on disk, except for missing rows.
        missing: by broker, how many rows are missing, and why.
        accepted: by broker, how many missing rows the writer has accepted.
    """

    transaction: str
    topic: str
    decision: WriteState
    touched: float
    series: str = ""
    number: int = 0
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    missing: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the number of rows of all parts."""
        return sum(sum(parts.values()) for parts in self.parts.values())

    @property
    def unfinished(self) -> list[str]:
        """Return the brokers that have parts to append and have not reported completion."""
        return sorted(self.parts.keys() - self.finished)


@dataclass(frozen=True, slots=True)
class SeriesCommit:
    """The last committed write of a series."""

    series: str
    number: int
    transaction: str
    rows: int


class WriteTransactionStore:
    """The files of one store directory; one thread at a time."""

    def __init__(self, store_directory: Path) -> None:
        self._writes = store_directory / "raymq" / "writes"
        self._series = store_directory / "raymq" / "series"

    def put(self, record: WriteTransaction) -> None:
        """Store the record of a write durably.

        Raise StoreFull or StoreFailed if it cannot be written; the previous record stays.
        """
        content = {
            "topic": record.topic,
            "decision": record.decision.value,
            "touched": record.touched,
            "series": record.series,
            "number": record.number,
            "parts": {broker: dict(parts) for broker, parts in record.parts.items()},
            "finished": sorted(record.finished),
            "missing": {broker: list(rows_and_reason) for broker, rows_and_reason in record.missing.items()},
            "accepted": dict(record.accepted),
        }
        path = self._path(record.transaction)
        make_folder(self._writes)
        failpoint("write.before_record")
        replace(path, kept_twice([content]))
        failpoint("write.after_record")

    def remove(self, transaction: str) -> None:
        """Remove the record of a write; a power loss may restore it."""
        unlink(self._path(transaction))

    def transactions(self) -> list[str]:
        """Return the writes that have a record."""
        return [path.name for path in paths_in(self._writes) if _NAME.fullmatch(path.name)]

    def read(self, transaction: str) -> WriteTransaction:
        """Return the record of a write.

        Raise StoreCorrupt if it cannot be read, and FileNotFoundError if it does not exist.
        """
        return _read(self._path(transaction))

    def put_series_commit(self, end: SeriesCommit) -> None:
        """Store the last write of a series; raise as `put` does."""
        make_folder(self._series)
        failpoint("write.before_series")
        replace(self._series_path(end.series), kept_twice([end.series, end.number, end.transaction, end.rows]))

    def end(self, series: str) -> SeriesCommit | None:
        """Return the last committed write of a series, or None if there is none.

        Raise StoreCorrupt if it cannot be read.
        """
        path = self._series_path(series)
        try:
            content = read_whole(path)
        except FileNotFoundError:
            return None
        try:
            name, number, transaction, rows = decode_mirrored(content, path)
            if name != series:
                raise ValueError("the file of another series")
            return SeriesCommit(series, int(number), str(transaction), int(rows))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StoreCorrupt(str(path), 0, f"not a series of writes: {error}") from None

    def _path(self, transaction: str) -> Path:
        return self._writes / check_transaction_name(transaction)

    def _series_path(self, series: str) -> Path:
        if not 0 < len(series) <= MAX_SERIES_NAME:
            raise InvalidInput("series", f"1 to {MAX_SERIES_NAME} characters", series)
        return self._series / hashlib.blake2b(series.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def check_transaction_name(name: str) -> str:
    """Return `name`, or raise InvalidInput if it is not a valid transaction name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("transaction", "1 to 64 letters, digits, _ or -", name)
    return name


def _read(path: Path) -> WriteTransaction:
    try:
        decoded = decode_mirrored(read_whole(path), path)
        record: Mapping[str, Any] = (
            decoded[0] if isinstance(decoded, list) else decoded
        )  # older versions stored only the mapping
        return WriteTransaction(
            path.name,
            str(record["topic"]),
            WriteState(record["decision"]),
            # Older versions stored wall-clock times, which have no meaning here: such a write counts as active just
            # now.
            float(record.get("touched", math.inf)),
            str(record["series"]),
            int(record["number"]),
            {
                str(broker): {str(part): int(rows) for part, rows in parts.items()}
                for broker, parts in record["parts"].items()
            },
            frozenset(map(str, record["finished"])),
            # Older versions did not store missing rows.
            {str(broker): (int(rows), str(reason)) for broker, (rows, reason) in record.get("missing", {}).items()},
            {str(broker): int(rows) for broker, rows in record.get("accepted", {}).items()},
        )
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"not the record of a write: {error}") from None
