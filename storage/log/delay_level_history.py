"""Record which table of delay levels was in force for each part of the log.

The record of a delayed message holds its level, not how long the level lasts, and its queue entry is derived data that
recovery rebuilds from the record. When the table is changed between two starts, the physical offset from which the new
table applies is therefore saved.

`raymq/delay_levels.json`: `{"tables":[[0,"1s 5s"],[81920,"1m 5m"]]}`, with the previous content as `.bak`. If the file
cannot be read, the present table is assumed to have been in force all the time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.storage import delay_levels
from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.records.byte_rows import Int64s

#: The delay of a level that is not in its table.
UNKNOWN_MS: Final = 1 << 60
#: Above every physical offset of a log.
_NOT_YET: Final = 1 << 62
_log = logging.getLogger(__name__)


class DelayLevelHistory:
    """The delay tables of one store, each with the physical offset where it begins.

    The newest table is that of the settings.
    """

    def __init__(self, path: Path, table: str) -> None:
        """Read the saved tables; nothing is changed before `begin`.

        Args:
            table: the table of the settings. Raise InvalidInput if it is not valid.
        """
        self._path = path
        self._table = table
        self._is_new = False
        self._told = _read(path)
        if not self._told:
            self._told, self._is_new = [(0, table)], True
        elif delay_levels.parse(self._told[-1][1]) != delay_levels.parse(table):
            self._told, self._is_new = [*self._told, (_NOT_YET, table)], True
        self._index()

    def begin(self, log_min: int, log_end: int, *, writable: bool) -> None:
        """Put the settings' table in force from `log_end` on.

        This must be called before anything is appended.

        Args:
            log_min: tables that applied only before this physical offset are dropped.

        Raises:
            StoreFull, StoreFailed: the tables could not be saved.
        """
        # If a loss of power cut the log's end, what follows there is written under the present table.
        places = [min(place, log_end) for place, _ in self._told]
        retained = [
            (place, table)
            for place, (_, table), following in zip(places, self._told, [*places[1:], _NOT_YET], strict=True)
            if place < following and following > log_min
        ]
        if self._is_new or retained != self._told:
            self._told = retained
            self._index()
            if writable:
                json_file.save(self._path, {"tables": [list(each) for each in retained]}, _tables)
        self._is_new = False

    @property
    def levels(self) -> int:
        """Return the number of levels in the settings' table."""
        return len(self._delays_ms[-1])

    @property
    def since(self) -> int:
        """Return the physical offset from which the settings' table applies; 0 if always."""
        return int(self._places[-1])

    def delay_ms(self, queue_id: int) -> int:
        """Return the present delay of a queue of the schedule topic.

        Queue ids beyond the last level have the last level's delay.
        """
        now = self._delays_ms[-1]
        return now[min(queue_id, len(now) - 1)]

    def delays_ms(self, queue_id: int, places: Int64s) -> Int64s:
        """Return the delays of a queue's records at these physical offsets.

        The delay is UNKNOWN_MS where the table in force lacks the level.
        """
        of_tables = np.array([t[queue_id] if queue_id < len(t) else UNKNOWN_MS for t in self._delays_ms], np.int64)
        numbers: npt.NDArray[np.intp] = np.searchsorted(self._places, places, "right") - 1
        found: Int64s = of_tables[np.maximum(numbers, 0)]
        return found

    def due_ms(self, queue_id: int, places: Int64s, from_ms: Int64s) -> Int64s:
        """Return when records that have waited since `from_ms` are due.

        Where the table in force lacks the level, the present table's delay is used.
        """
        delays_ms = self.delays_ms(queue_id, places)
        return from_ms + np.where(delays_ms == UNKNOWN_MS, self.delay_ms(queue_id), delays_ms)

    def _index(self) -> None:
        self._places = np.array([place for place, _ in self._told], np.int64)
        self._delays_ms = [delay_levels.parse(table) for _, table in self._told]


def _read(path: Path) -> list[tuple[int, str]]:
    try:
        return json_file.load_as(path, _tables)
    except StoreCorrupt as error:
        _log.warning("the former delay levels are lost: %s", error)
        return []


def _tables(raw: Mapping[str, Any]) -> list[tuple[int, str]]:
    tables = [(place, table) for place, table in raw.get("tables", [])]
    in_order = all(type(place) is int and 0 <= place < _NOT_YET for place, _ in tables)
    if not in_order or [place for place, _ in tables] != sorted({place for place, _ in tables}):
        raise ValueError("offsets that are not in order")
    for _, table in tables:
        delay_levels.parse(table)
    return tables
