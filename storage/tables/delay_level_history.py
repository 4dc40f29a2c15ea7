"""Record which table of delay levels was in force for each part of the log.

The record of a delayed message holds its level, not how long the level lasts, and its queue entry is derived data that
recovery rebuilds from the record. When the table is changed between two starts, the physical offset from which the new
table applies is therefore saved. If nothing is saved, the present table is assumed to have been in force all the time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from raymq.storage import delay_levels
from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.records.byte_rows import Int64s

#: The delay of a level that is not in its table.
UNKNOWN_MS: Final = 1 << 60
#: Above every physical offset of a log.
_NOT_YET: Final = 1 << 62
_log = logging.getLogger(__name__)


class DelayLevelHistory(JournaledTable):
    """The delay tables of one store, each with the physical offset where it begins.

    The newest table is that of the settings. Events: [[[physical offset, table], ...]], all tables.

    Attributes:
        saved: the offsets and tables of the last event.
    """

    NUMBER: ClassVar = 19
    COPIES: ClassVar = 2

    def __init__(self) -> None:
        self.saved: list[tuple[int, str]] = []
        self._table = ""
        #: Where each table begins, and its delays; that of the settings is the last one.
        self._index: tuple[Int64s, list[tuple[int, ...]]] = np.zeros(0, np.int64), []

    def use(self, table: str) -> None:
        """Set the settings' table, which is in force until `beginning` was applied.

        Raise InvalidInput if it is not valid. Before this call no delay is known.
        """
        delay_levels.parse(table)
        self._table = table
        self._index = self._indexed()

    def beginning(self, log_min: int, log_end: int) -> Iterator[Fields]:
        """Return the event that puts the settings in force from `log_end`, if any.

        It must be applied before anything is appended.

        Args:
            log_min: tables that applied only before this physical offset are dropped.
        """
        tables = self._tables()
        # If a loss of power cut the log's end, what follows there is written under the present table.
        places = [min(place, log_end) for place, _ in tables]
        retained = [
            (place, table)
            for place, (_, table), following in zip(places, tables, [*places[1:], _NOT_YET], strict=True)
            if place < following and following > log_min
        ]
        if retained != self.saved:
            yield (retained,)

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        (tables,) = fields
        self.saved = _checked(tables)
        if self._table:
            self._index = self._indexed()

    def snapshot(self) -> Iterator[Fields]:
        """Return one event with all tables."""
        if self.saved:
            yield (self.saved,)

    @property
    def levels(self) -> int:
        """Return the number of levels in the settings' table."""
        return len(self._index[1][-1])

    @property
    def since(self) -> int:
        """Return the physical offset from which the settings' table applies; 0 if always."""
        return int(self._index[0][-1])

    def delay_ms(self, queue_id: int) -> int:
        """Return the present delay of a queue of the schedule topic.

        Queue ids beyond the last level have the last level's delay.
        """
        now = self._index[1][-1]
        return now[min(queue_id, len(now) - 1)]

    def delays_ms(self, queue_id: int, places: Int64s) -> Int64s:
        """Return the delays of a queue's records at these physical offsets.

        The delay is UNKNOWN_MS where the table in force lacks the level.
        """
        begins, tables = self._index
        of_tables = np.array([t[queue_id] if queue_id < len(t) else UNKNOWN_MS for t in tables], np.int64)
        numbers: npt.NDArray[np.intp] = np.searchsorted(begins, places, "right") - 1
        found: Int64s = of_tables[np.maximum(numbers, 0)]
        return found

    def due_ms(self, queue_id: int, places: Int64s, from_ms: Int64s) -> Int64s:
        """Return when records that have waited since `from_ms` are due.

        Where the table in force lacks the level, the present table's delay is used.
        """
        delays_ms = self.delays_ms(queue_id, places)
        return from_ms + np.where(delays_ms == UNKNOWN_MS, self.delay_ms(queue_id), delays_ms)

    def _tables(self) -> list[tuple[int, str]]:
        """Return the saved tables and that of the settings."""
        if not self.saved:
            return [(0, self._table)]
        if delay_levels.parse(self.saved[-1][1]) != delay_levels.parse(self._table):
            return [*self.saved, (_NOT_YET, self._table)]
        return self.saved

    def _indexed(self) -> tuple[Int64s, list[tuple[int, ...]]]:
        tables = self._tables()
        return np.array([place for place, _ in tables], np.int64), [delay_levels.parse(table) for _, table in tables]


def read_delay_tables(path: Path) -> list[tuple[int, str]]:
    """Return the tables in a file, or in its spare copy: `{"tables":[[0,"1s 5s"],[81920,"1m 5m"]]}`.

    Return nothing without such a file, and log what is damaged. Raise StoreBusy or StoreFailed if it cannot be read
    now.
    """
    try:
        return json_file.load_as(path, _tables_in)
    except StoreCorrupt as error:
        _log.warning("the former delay levels are lost: %s", error)
        return []


def _tables_in(raw: Mapping[str, Any]) -> list[tuple[int, str]]:
    return _checked(raw.get("tables", []))


def _checked(saved: Sequence[Any]) -> list[tuple[int, str]]:
    """Return the tables of an event; raise ValueError or TypeError if they are not valid."""
    tables = [(place, table) for place, table in saved]
    in_order = all(type(place) is int and 0 <= place < _NOT_YET for place, _ in tables)
    if not in_order or [place for place, _ in tables] != sorted({place for place, _ in tables}):
        raise ValueError("offsets that are not in order")
    for _, table in tables:
        delay_levels.parse(table)
    return tables
