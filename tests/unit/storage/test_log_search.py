"""Test the search of the log for records that contain some bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.storage.log import log_search
from raymq.storage.records.record import OFFSET_MAGIC, decode
from raymq.storage.store import Store
from tests.store_records import SMALL, append, flip_byte, log_file, make_record

PATTERN = b"needle\x01"
COUNT = 120


def fill(store: Store) -> list[int]:
    """Append records of several sizes over several files; return the offsets of those with the pattern."""
    found = []
    for number in range(COUNT):
        body = b"x" * (number * 37 % 900) + (PATTERN if number % 7 == 3 else b"needl")
        made = append(store, make_record(body, keys=f"k{number}"))
        found += made.physical_offsets.tolist() if number % 7 == 3 else []
    assert store.max_physical_offset > 10 * SMALL.commitlog_file_bytes
    return found


def search(store: Store, begin: int = 0, most: int = 100) -> list[int]:
    """Return the physical offsets of all found records."""
    offsets: list[int] = []
    while begin < store.max_physical_offset:
        records, sizes, following = store.find_records(PATTERN, begin, most)
        assert begin < following <= store.max_physical_offset
        assert len(sizes) <= most
        assert len(records) == sizes.sum()
        for start in (np.cumsum(sizes) - sizes).tolist():
            record = decode(memoryview(records), start)
            assert begin <= record.physical_offset < following
            offsets.append(record.physical_offset)
        begin = following
    return offsets


@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("part_bytes", [200, 1_000, 4 << 20])
def test_search_finds_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int, most: int
) -> None:
    """Cover parts that are shorter than a record, and the ends of files."""
    monkeypatch.setattr(log_search, "_PART_BYTES", part_bytes)
    with Store.open(tmp_path / "s", SMALL) as store:
        expected = fill(store)
        assert search(store, most=most) == expected
        assert search(store, expected[4], most) == expected[4:]


@pytest.mark.parametrize("part_bytes", [200, 4 << 20])
def test_search_continues_behind_damaged_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(log_search, "_PART_BYTES", part_bytes)
    with Store.open(tmp_path / "s", SMALL) as store:
        expected = fill(store)
        for damaged, at in ((expected[2], OFFSET_MAGIC), (expected[5], 1), (expected[8], 2)):  # magic, and sizes
            file = damaged - damaged % SMALL.commitlog_file_bytes
            flip_byte(log_file(tmp_path / "s", file), damaged - file + at)
        found = search(store)
        assert [offset for offset in expected if offset not in found] == [expected[2], expected[5], expected[8]]
        assert search(store, expected[2] + 5) == [offset for offset in found if offset > expected[2]]


def test_search_of_an_empty_or_searched_log_finds_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        assert store.find_records(PATTERN, 0, 10).following == 0
        fill(store)
        end = store.max_physical_offset
        assert store.find_records(PATTERN, end, 10).following == end
