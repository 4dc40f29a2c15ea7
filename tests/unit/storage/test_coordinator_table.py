"""Test that coordinators and known brokers are kept over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.coordinator_table import MAX_KEY_LENGTH, CoordinatorTable, KnownBrokers
from tests.full_disk import FullDisk
from tests.state_journals import open_table


def test_first_coordinator_is_kept_over_restarts(tmp_path: Path) -> None:
    table = open_table(tmp_path, CoordinatorTable())
    assert table.find("series", "q/t") is None
    assert table.remember("series", "q/t", "broker-a") == "broker-a"
    assert open_table(tmp_path, CoordinatorTable()).remember("series", "q/t", "broker-b") == "broker-a"
    assert open_table(tmp_path, CoordinatorTable()).find("series", "q/t") == "broker-a"


def test_keys_of_two_kinds_are_separate(tmp_path: Path) -> None:
    table = open_table(tmp_path, CoordinatorTable())
    table.remember("series", "x", "broker-a")
    assert table.find("stream", "x") is None
    assert table.remember("stream", "x", "broker-b") == "broker-b"
    assert table.find("series", "x") == "broker-a"


def test_key_may_be_any_text(tmp_path: Path) -> None:
    table = open_table(tmp_path, CoordinatorTable())
    for key in ("../../etc/passwd", "a\0b", "ä" * MAX_KEY_LENGTH, " "):
        assert table.remember("stream", key, "broker-a") == "broker-a"
        assert table.find("stream", key) == "broker-a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raymq"]


@pytest.mark.parametrize(
    ("kind", "key", "coordinator"),
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
def test_invalid_kind_key_or_broker_is_refused(tmp_path: Path, kind: str, key: str, coordinator: str) -> None:
    with pytest.raises(InvalidInput):
        open_table(tmp_path, CoordinatorTable()).remember(kind, key, coordinator)
    assert open_table(tmp_path, CoordinatorTable()).page("", 10).entries == []


def test_entries_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    open_table(tmp_path, CoordinatorTable(most=2)).remember("k", "1", "a")
    table = open_table(tmp_path, CoordinatorTable(most=2))
    table.remember("k", "2", "a")
    with pytest.raises(InvalidInput, match="at most 2"):
        table.remember("k", "3", "a")
    assert table.remember("k", "2", "b") == "a"


def test_full_disk_refuses_a_coordinator(tmp_path: Path) -> None:
    table = open_table(tmp_path, CoordinatorTable())
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        table.remember("k", "1", "a")
    for each in (table, open_table(tmp_path, CoordinatorTable())):
        assert each.find("k", "1") is None
    assert table.remember("k", "1", "b") == "b"
    assert open_table(tmp_path, CoordinatorTable()).find("k", "1") == "b"


def test_known_brokers_and_sync_flags_survive_restarts(tmp_path: Path) -> None:
    brokers = open_table(tmp_path, KnownBrokers())
    assert brokers.known == {}
    brokers.add(["broker-a", "broker-b"], synced=False)
    brokers.add(["broker-b"], synced=True)
    brokers.add(["broker-b", "broker-c"], synced=False)
    assert (
        brokers.known
        == open_table(tmp_path, KnownBrokers()).known
        == {"broker-a": False, "broker-b": True, "broker-c": False}
    )
    brokers.forget("broker-b")
    brokers.forget("nobody")
    assert brokers.known == open_table(tmp_path, KnownBrokers()).known == {"broker-a": False, "broker-c": False}


@pytest.mark.parametrize("name", ["", "a/b", "a\0", "x" * 128])
def test_invalid_broker_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        open_table(tmp_path, KnownBrokers()).add([name], synced=True)
    assert open_table(tmp_path, KnownBrokers()).known == {}


def test_brokers_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    brokers = open_table(tmp_path, KnownBrokers(most=2))
    brokers.add(["a", "b"], synced=False)
    with pytest.raises(InvalidInput, match="at most 2"):
        brokers.add(["c"], synced=False)
    brokers.add(["b"], synced=True)
    assert brokers.known == {"a": False, "b": True}


def test_full_disk_refuses_brokers_and_keeps_the_others(tmp_path: Path) -> None:
    brokers = open_table(tmp_path, KnownBrokers())
    brokers.add(["broker-a"], synced=True)
    with replaced(FullDisk(0)):
        with pytest.raises(StoreFull):
            brokers.add(["broker-b"], synced=True)
        with pytest.raises(StoreFull):
            brokers.forget("broker-a")
    for each in (brokers, open_table(tmp_path, KnownBrokers())):
        assert each.known == {"broker-a": True}
