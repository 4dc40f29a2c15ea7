"""What a broker knows of homes stays as it was told first, over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.tables.coordinator_table import MAX_KEY_LENGTH, CoordinatorTable


def test_the_first_home_stands_over_restarts(tmp_path: Path) -> None:
    homes = CoordinatorTable(tmp_path)
    assert homes.find("series", "q/t") is None
    assert homes.remember("series", "q/t", "broker-a") == "broker-a"
    assert CoordinatorTable(tmp_path).remember("series", "q/t", "broker-b") == "broker-a"
    assert CoordinatorTable(tmp_path).find("series", "q/t") == "broker-a"


def test_keys_of_two_kinds_are_two(tmp_path: Path) -> None:
    homes = CoordinatorTable(tmp_path)
    homes.remember("series", "x", "broker-a")
    assert homes.find("stream", "x") is None
    assert homes.remember("stream", "x", "broker-b") == "broker-b"
    assert homes.find("series", "x") == "broker-a"


def test_a_key_may_be_any_text(tmp_path: Path) -> None:
    homes = CoordinatorTable(tmp_path)
    for key in ("../../etc/passwd", "a\0b", "ä" * MAX_KEY_LENGTH, " "):
        assert homes.remember("stream", key, "broker-a") == "broker-a"
        assert homes.find("stream", key) == "broker-a"
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
def test_what_cannot_be_is_refused(tmp_path: Path, kind: str, key: str, home: str) -> None:
    with pytest.raises(InvalidInput):
        CoordinatorTable(tmp_path).remember(kind, key, home)
    assert list(tmp_path.iterdir()) == []


def test_so_many_are_known_at_most(tmp_path: Path) -> None:
    CoordinatorTable(tmp_path, most=2).remember("k", "1", "a")
    homes = CoordinatorTable(tmp_path, most=2)
    homes.remember("k", "2", "a")
    with pytest.raises(InvalidInput, match="at most 2"):
        homes.remember("k", "3", "a")
    assert homes.remember("k", "2", "b") == "a"


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    CoordinatorTable(tmp_path).remember("k", "1", "a")
    [path] = (tmp_path / "raymq" / "homes").iterdir()
    for content in (b"", b"\xc1", path.read_bytes()[:12], b"\x93\xa1k\xa12\xa1a"):
        path.write_bytes(content)
        with pytest.raises(StoreCorrupt):
            CoordinatorTable(tmp_path).find("k", "1")
