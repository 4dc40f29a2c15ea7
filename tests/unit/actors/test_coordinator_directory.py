"""Test when the coordinator directory may answer that a key has no coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.broker.core.coordinator_directory import CoordinatorDirectory
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.storage.tables.coordinator_table import CoordinatorTable, KnownBrokers
from tests.state_journals import open_tables


def open_directory(directory: Path, name: str, *, mark_discovered: bool = True) -> CoordinatorDirectory:
    coordinators, brokers = CoordinatorTable(), KnownBrokers()
    open_tables(directory / name, coordinators, brokers)
    made = CoordinatorDirectory(name, coordinators, brokers)
    if mark_discovered:
        made.mark_discovered()
    return made


def sync_directories(newcomer: CoordinatorDirectory, name: str, known: CoordinatorDirectory, known_as: str) -> None:
    """Do what the duty of the broker called `name` does over the wire."""
    newcomer.merge((), [known_as])
    known.mark_synced(name)
    after = ""
    while True:
        page = known.page(after, 2)
        newcomer.merge(page.entries, known.members)
        if not page.last:
            break
        after = page.last
    newcomer.mark_synced(known_as)


def test_undiscovered_directory_raises_broker_unavailable(tmp_path: Path) -> None:
    a = open_directory(tmp_path, "a", mark_discovered=False)
    with pytest.raises(BrokerUnavailable):
        a.find("series", "k")
    a.mark_discovered()
    assert a.find("series", "k") is None
    assert a.remember("series", "k", "a", ["a"]) == "a"
    assert open_directory(tmp_path, "a", mark_discovered=False).find("series", "k") == "a"


def test_unsynced_directory_raises_broker_unavailable(tmp_path: Path) -> None:
    b = open_directory(tmp_path, "b")
    b.merge((), ["a", "b"])
    for each in (b, open_directory(tmp_path, "b")):
        assert each.unsynced_brokers() == ["a"]
        with pytest.raises(BrokerUnavailable, match="a: ") as raised:
            each.find("series", "k")
        assert "forget_broker" in str(raised.value)
        with pytest.raises(BrokerUnavailable):
            each.remember("series", "k", "b", ["a", "b"])
        assert each.members == ["a", "b"]
    b.forget("a")
    assert open_directory(tmp_path, "b").find("series", "k") is None
    with pytest.raises(InvalidInput):
        b.forget("b")


def test_new_broker_syncs_all_coordinators(tmp_path: Path) -> None:
    a, b = open_directory(tmp_path, "a"), open_directory(tmp_path, "b")
    for number in range(7):
        assert a.remember("series", str(number), "a", ["a"]) == "a"
    sync_directories(b, "b", a, "a")
    assert {b.find("series", str(number)) for number in range(7)} == {"a"}
    assert b.find("series", "7") is None
    assert a.members == b.members == ["a", "b"]


def test_assignment_waits_for_sync_with_new_broker(tmp_path: Path) -> None:
    """Prevent two brokers that see different peers from both assigning a coordinator."""
    b, a = open_directory(tmp_path, "b"), open_directory(tmp_path, "a")
    sync_directories(a, "a", b, "b")
    with pytest.raises(BrokerUnavailable, match="a: "):
        b.remember("series", "k", "b", ["b"])
    assert b.find("series", "k") is None
    assert a.remember("series", "k", "a", ["a", "b"]) == "a"
    assert b.remember("series", "k", "a") == "a"


def test_first_coordinator_assignment_wins(tmp_path: Path) -> None:
    a = open_directory(tmp_path, "a")
    a.mark_synced("b")
    assert a.remember("stream", "k", "b", ["a", "b"]) == "b"
    assert a.remember("stream", "k", "a", ["a", "b"]) == "b"
