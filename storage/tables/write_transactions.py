"""The coordinator's records of staged writes, and of the series that writes belong to.

The record of a write says open, committed (which parts on which broker, how many rows) or aborted. That it says
"committed" is the commit of the whole write. The last committed write of a series is kept forever.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The valid names of transactions.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The longest name of a series, in characters.
MAX_SERIES_NAME: Final = 512
#: Kinds of events: a write's record, a removed record, a series' last commit.
_WRITE: Final = "w"
_REMOVED: Final = "r"
_SERIES: Final = "s"


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


class WriteTransactionStore(JournaledTable):
    """The writes and series that one broker coordinates; one thread at a time.

    Events: ["w", transaction, its record], ["r", transaction], ["s", series, number, transaction, rows].
    """

    NUMBER: ClassVar = 12
    COPIES: ClassVar = 2

    def __init__(self) -> None:
        self._writes: dict[str, WriteTransaction] = {}
        self._series: dict[str, SeriesCommit] = {}

    def put(self, record: WriteTransaction) -> None:
        """Store the record of a write durably.

        Raise StoreFull if it cannot be written; the previous record stays. Raise StoreFailed if it may not be on disk.
        """
        failpoint("write.before_record")
        self.record_durably((_WRITE, check_transaction_name(record.transaction), _encoded(record)))
        failpoint("write.after_record")

    def remove(self, transaction: str) -> None:
        """Remove the record of a write; a power loss may restore it."""
        if transaction in self._writes:
            self.record(_REMOVED, transaction)

    def transactions(self) -> list[WriteTransaction]:
        """Return the records of all writes."""
        return list(self._writes.values())

    def put_series_commit(self, end: SeriesCommit) -> None:
        """Store the last write of a series; raise as `put` does."""
        failpoint("write.before_series")
        self.record_durably((_SERIES, _checked_series(end.series), end.number, end.transaction, end.rows))

    def end(self, series: str) -> SeriesCommit | None:
        """Return the last committed write of a series, or None if there is none.

        Raise InvalidInput if the name is not valid.
        """
        return self._series.get(_checked_series(series))

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, name, *rest = fields
        if kind == _WRITE:
            self._writes[check_transaction_name(name)] = _decoded(name, *rest)
        elif kind == _REMOVED:
            self._writes.pop(name, None)
        elif kind == _SERIES:
            number, transaction, rows = rest
            self._series[_checked_series(name)] = SeriesCommit(name, int(number), str(transaction), int(rows))
        else:
            raise ValueError(f"no kind of event: {kind!r:.20}")

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each write and series."""
        for record in self._writes.copy().values():
            yield _WRITE, record.transaction, _encoded(record)
        for end in self._series.copy().values():
            yield _SERIES, end.series, end.number, end.transaction, end.rows


def _checked_series(series: str) -> str:
    if not 0 < len(series) <= MAX_SERIES_NAME:
        raise InvalidInput("series", f"1 to {MAX_SERIES_NAME} characters", series)
    return series


def check_transaction_name(name: str) -> str:
    """Return `name`, or raise InvalidInput if it is not a valid transaction name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("transaction", "1 to 64 letters, digits, _ or -", name)
    return name


def _encoded(record: WriteTransaction) -> dict[str, Any]:
    return {
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


def _decoded(transaction: str, record: Mapping[str, Any]) -> WriteTransaction:
    return WriteTransaction(
        transaction,
        str(record["topic"]),
        WriteState(record["decision"]),
        # Formerly wall-clock times were stored, which have no meaning here: such a write counts as active just now.
        float(record.get("touched", math.inf)),
        str(record["series"]),
        int(record["number"]),
        {
            str(broker): {str(part): int(rows) for part, rows in parts.items()}
            for broker, parts in record["parts"].items()
        },
        frozenset(map(str, record["finished"])),
        # Formerly missing rows were not stored.
        {str(broker): (int(rows), str(reason)) for broker, (rows, reason) in record.get("missing", {}).items()},
        {str(broker): int(rows) for broker, rows in record.get("accepted", {}).items()},
    )
