"""Test which table of delay levels was in force at which place of the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.storage.log.delay_level_history import UNKNOWN_MS, DelayLevelHistory


def open_history(path: Path, *starts: tuple[str, int, int]) -> DelayLevelHistory:
    """Return the history after starts with these tables, log begins and log ends."""
    for table, log_min, log_end in starts:
        made = DelayLevelHistory(path / "delay_levels.json", table)
        made.begin(log_min, log_end, writable=True)
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
    assert delays(DelayLevelHistory(tmp_path / "delay_levels.json", starts[-1][0]), 0, *places) == expected, (
        "written down"
    )


def test_delay_of_a_level_missing_in_its_table_is_unknown(tmp_path: Path) -> None:
    tables = open_history(tmp_path, ("1s 5s", 0, 0), ("1s", 0, 100), ("1s 7s", 0, 200))
    assert delays(tables, 1, 50, 150, 250) == [5, _UNKNOWN, 7]
    places = np.array([50, 150], np.int64)
    assert tables.due_ms(1, places, np.array([1000, 1000])).tolist() == [6_000, 8_000]


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
def test_unreadable_history_does_not_prevent_opening(tmp_path: Path, damage: bytes) -> None:
    open_history(tmp_path, ("1s", 0, 0), ("9s", 0, 100))
    path = tmp_path / "delay_levels.json"
    path.write_bytes(damage)
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    assert delays(open_history(tmp_path, ("3s", 0, 200)), 0, 0, 300) == [3, 3]
    assert delays(open_history(tmp_path, ("4s", 0, 400)), 0, 0, 400) == [3, 4]


def test_backup_copy_is_read_when_the_file_is_damaged(tmp_path: Path) -> None:
    open_history(tmp_path, ("1s", 0, 0), ("9s", 0, 100), ("5s", 0, 200))
    (tmp_path / "delay_levels.json").write_bytes(b"{")
    assert delays(open_history(tmp_path, ("5s", 0, 300)), 0, 0, 150) == [1, 9]
