"""Test that the coordinator table keeps the first coordinator of a key over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.tables.coordinator_table import MAX_KEY_LENGTH, CoordinatorTable


def test_first_coordinator_is_kept_over_restarts(tmp_path: Path) -> None:
    table = CoordinatorTable(tmp_path)
    assert table.find("series", "q/t") is None
    assert table.remember("series", "q/t", "broker-a") == "broker-a"
    assert CoordinatorTable(tmp_path).remember("series", "q/t", "broker-b") == "broker-a"
    assert CoordinatorTable(tmp_path).find("series", "q/t") == "broker-a"


def test_keys_of_two_kinds_are_separate(tmp_path: Path) -> None:
    table = CoordinatorTable(tmp_path)
    table.remember("series", "x", "broker-a")
    assert table.find("stream", "x") is None
    assert table.remember("stream", "x", "broker-b") == "broker-b"
    assert table.find("series", "x") == "broker-a"


def test_key_may_be_any_text(tmp_path: Path) -> None:
    table = CoordinatorTable(tmp_path)
    for key in ("../../etc/passwd", "a\0b", "ä" * MAX_KEY_LENGTH, " "):
        assert table.remember("stream", key, "broker-a") == "broker-a"
        assert table.find("stream", key) == "broker-a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raymq"]


@pytest.mark.parametrize(
    ("kind", "key", "home"),
    [
        ("", "k", "a"),
        ("../x", "k", "a"),
        ("k" * 33, "k", "a"),
        ("k", "", "a"),
        ("k", "x" * (MAX_KEY_LENGTH + 1), "a"),
        ("k", "x", ""),
        ("k", "x", "a/b"),
    ],
)
def test_invalid_kind_key_or_broker_is_refused(tmp_path: Path, kind: str, key: str, home: str) -> None:
    with pytest.raises(InvalidInput):
        CoordinatorTable(tmp_path).remember(kind, key, home)
    assert list(tmp_path.iterdir()) == []


def test_entries_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    CoordinatorTable(tmp_path, most=2).remember("k", "1", "a")
    table = CoordinatorTable(tmp_path, most=2)
    table.remember("k", "2", "a")
    with pytest.raises(InvalidInput, match="at most 2"):
        table.remember("k", "3", "a")
    assert table.remember("k", "2", "b") == "a"


def test_damaged_file_raises_store_corrupt(tmp_path: Path) -> None:
    CoordinatorTable(tmp_path).remember("k", "1", "a")
    [path] = (tmp_path / "raymq" / "homes").iterdir()
    for content in (b"", b"\xc1", path.read_bytes()[:12], b"\x93\xa1k\xa12\xa1a"):
        path.write_bytes(content)
        with pytest.raises(StoreCorrupt):
            CoordinatorTable(tmp_path).find("k", "1")
