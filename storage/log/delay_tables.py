"""Which table of delay levels was in force when a part of the log was written.

What waits a level says in its record which level that is, not how long it lasts, and its queue entry is derived: it is
made anew from the record at a start. So when the table is changed between two starts, the place of the log from which
the new one holds is written down.

`raymq/delay_levels.json`: `{"tables":[[0,"1s 5s"],[81920,"1m 5m"]]}`, with the one before it as `.bak`. Where it cannot
be read, the present table is taken to have been in force all the time.
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

#: The delay of a level that its table did not have: any.
UNKNOWN_MS: Final = 1 << 60
#: Behind every place of a log.
_NOT_YET: Final = 1 << 62
_log = logging.getLogger(__name__)


class DelayTables:
    """The tables of one store, each from its place in the log on; the newest one is that of the settings."""

    def __init__(self, path: Path, table: str) -> None:
        """Read what was written down; nothing is changed before `begin`.

        Args:
            table: the table of the settings. InvalidInput if it is none.
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
        """From `log_end` on the settings' table is in force; to be called before anything is appended.

        Args:
            log_min: what held only before this place is forgotten.

        Raises:
            StoreFull, StoreFailed: it could not be written down.
        """
        # What a loss of power has taken off the log's end is written again under the table of now.
        places = [min(place, log_end) for place, _ in self._told]
        kept = [
            (place, table)
            for place, (_, table), following in zip(places, self._told, [*places[1:], _NOT_YET], strict=True)
            if place < following and following > log_min
        ]
        if self._is_new or kept != self._told:
            self._told = kept
            self._index()
            if writable:
                json_file.save(self._path, {"tables": [list(each) for each in kept]}, _tables)
        self._is_new = False

    @property
    def levels(self) -> int:
        """How many levels the settings' table has."""
        return len(self._delays_ms[-1])

    @property
    def since(self) -> int:
        """The place of the log from which the settings' table is in force; 0: it always was."""
        return int(self._places[-1])

    def delay_ms(self, queue_id: int) -> int:
        """How long what comes into that queue of the schedule topic waits from now on.

        Beyond the last level it is the last one's.
        """
        now = self._delays_ms[-1]
        return now[min(queue_id, len(now) - 1)]

    def delays_ms(self, queue_id: int, places: Int64s) -> Int64s:
        """How long the records of that queue at these places of the log wait; UNKNOWN_MS where no table says it."""
        of_tables = np.array([t[queue_id] if queue_id < len(t) else UNKNOWN_MS for t in self._delays_ms], np.int64)
        numbers: npt.NDArray[np.intp] = np.searchsorted(self._places, places, "right") - 1
        found: Int64s = of_tables[np.maximum(numbers, 0)]
        return found

    def due_ms(self, queue_id: int, places: Int64s, from_ms: Int64s) -> Int64s:
        """When records that have waited since `from_ms` are due; where no table says it, by the present one."""
        delays_ms = self.delays_ms(queue_id, places)
        return from_ms + np.where(delays_ms == UNKNOWN_MS, self.delay_ms(queue_id), delays_ms)

    def _index(self) -> None:
        self._places = np.array([place for place, _ in self._told], np.int64)
        self._delays_ms = [delay_levels.parse(table) for _, table in self._told]


def _read(path: Path) -> list[tuple[int, str]]:
    try:
        return json_file.load_as(path, _tables)
    except StoreCorrupt as error:
        _log.warning("the delay levels of before are not known any more: %s", error)
        return []


def _tables(raw: Mapping[str, Any]) -> list[tuple[int, str]]:
    told = [(place, table) for place, table in raw.get("tables", [])]
    in_order = all(type(place) is int and 0 <= place < _NOT_YET for place, _ in told)
    if not in_order or [place for place, _ in told] != sorted({place for place, _ in told}):
        raise ValueError("places of the log that are in no order")
    for _, table in told:
        delay_levels.parse(table)
    return told
