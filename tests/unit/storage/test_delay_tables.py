"""Test which table of delay levels was in force at which place of the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.storage.files.json_file import DECODE_ERRORS
from raymq.storage.tables.delay_level_history import UNKNOWN_MS, DelayLevelHistory, read_delay_tables
from tests.state_journals import open_table


def open_history(path: Path, *starts: tuple[str, int, int]) -> DelayLevelHistory:
    """Return the history after starts with these tables, log begins and log ends."""
    for table, log_min, log_end in starts:
        made = open_table(path, DelayLevelHistory())
        made.use(table)
        for fields in made.beginning(log_min, log_end):
            made.record(*fields)
    return made


def delays(tables: DelayLevelHistory, queue_id: int, *places: int) -> list[int]:
    found: list[int] = (tables.delays_ms(queue_id, np.array(places, np.int64)) // 1000).tolist()
    return found


_UNKNOWN = UNKNOWN_MS // 1000


@pytest.mark.parametrize(
    ("starts", "places", "expected"),
    [
        ([("1s 5s", 0, 0)], [0, 999], [1, 1]),
        ([("1s", 0, 0), ("9s", 0, 100)], [0, 99, 100, 101], [1, 1, 9, 9]),
        ([("1s", 0, 0), ("9s", 0, 100), ("9s", 0, 500)], [99, 100, 600], [1, 9, 9]),
        ([("60s", 0, 0), ("1m", 0, 100), ("2m", 0, 200)], [99, 199, 200], [60, 60, 120]),
        # A power loss removes the log's end: what is written there later is of the newest table.
        ([("1s", 0, 0), ("9s", 0, 100), ("9s", 0, 50)], [49, 50, 100], [1, 9, 9]),
        ([("1s", 0, 0), ("2s", 0, 100), ("3s", 0, 200), ("4s", 0, 50)], [49, 50, 150, 250], [1, 4, 4, 4]),
        # What the log no longer holds needs no table.
        ([("1s", 0, 0), ("2s", 0, 100), ("3s", 0, 200), ("3s", 150, 300)], [100, 199, 200], [2, 2, 3]),
    ],
)
def test_table_of_a_log_place_is_known_after_restarts(
    tmp_path: Path, starts: list[tuple[str, int, int]], places: list[int], expected: list[int]
) -> None:
    tables = open_history(tmp_path, *starts)
    assert delays(tables, 0, *places) == expected
    again = open_table(tmp_path, DelayLevelHistory())
    again.use(starts[-1][0])
    assert delays(again, 0, *places) == expected, "written down"
    assert list(again.beginning(starts[-1][1], starts[-1][2])) == []


def test_delay_of_a_level_missing_in_its_table_is_unknown(tmp_path: Path) -> None:
    tables = open_history(tmp_path, ("1s 5s", 0, 0), ("1s", 0, 100), ("1s 7s", 0, 200))
    assert delays(tables, 1, 50, 150, 250) == [5, _UNKNOWN, 7]
    places = np.array([50, 150], np.int64)
    assert tables.due_ms(1, places, np.array([1000, 1000])).tolist() == [6_000, 8_000]


@pytest.mark.parametrize(
    "fields", [(), (7,), ([[5, "1s"], [2, "5s"]],), ([[0, "x"]],), ([[0]],), ([[-1, "1s"]],), ([["0", "1s"]],)]
)
def test_event_that_is_no_history_is_refused(fields: tuple[object, ...]) -> None:
    table = DelayLevelHistory()
    table.use("3s")
    with pytest.raises(DECODE_ERRORS):
        table.apply(fields)
    assert delays(table, 0, 0, 300) == [3, 3]


def test_event_of_a_master_changes_an_open_table() -> None:
    # The dispatcher of a replica reads the table while its master's events are applied.
    table = DelayLevelHistory()
    table.use("3s")
    assert delays(table, 0, 0, 300) == [3, 3]
    table.apply(([[0, "1s"], [200, "2s"]],))
    assert delays(table, 0, 0, 300) == [1, 2]
    assert table.delay_ms(0) == 3_000


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 20,
        b"[]",
        b'{"tables":7}',
        b'{"tables":[[5,"1s"],[2,"5s"]]}',
        b'{"tables":[[0,"x"]]}',
        b'{"tables":[[0]]}',
    ],
)
def test_unreadable_file_of_format_2_is_ignored(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "delay_levels.json"
    path.write_bytes(damage)
    assert read_delay_tables(path) == []
    path.with_name(path.name + ".bak").write_text('{"tables":[[0,"1s"],[100,"9s"]]}')
    assert read_delay_tables(path) == [(0, "1s"), (100, "9s")]
