"""Test that known brokers are kept over restarts, until one is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.coordinator_table import KnownBrokers
from tests.full_disk import FullDisk
from tests.state_journals import open_table


def test_known_brokers_and_sync_flags_survive_restarts(tmp_path: Path) -> None:
    members = open_table(tmp_path, KnownBrokers())
    assert members.known == {}
    members.add(["broker-a", "broker-b"], synced=False)
    members.add(["broker-b"], synced=True)
    members.add(["broker-b", "broker-c"], synced=False)
    assert (
        members.known
        == open_table(tmp_path, KnownBrokers()).known
        == {"broker-a": False, "broker-b": True, "broker-c": False}
    )
    members.forget("broker-b")
    members.forget("nobody")
    assert members.known == open_table(tmp_path, KnownBrokers()).known == {"broker-a": False, "broker-c": False}


@pytest.mark.parametrize("name", ["", "a/b", "a\0", "x" * 128])
def test_invalid_broker_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        open_table(tmp_path, KnownBrokers()).add([name], synced=True)
    assert open_table(tmp_path, KnownBrokers()).known == {}


def test_brokers_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    members = open_table(tmp_path, KnownBrokers(most=2))
    members.add(["a", "b"], synced=False)
    with pytest.raises(InvalidInput, match="at most 2"):
        members.add(["c"], synced=False)
    members.add(["b"], synced=True)
    assert members.known == {"a": False, "b": True}


def test_full_disk_refuses_brokers_and_keeps_the_others(tmp_path: Path) -> None:
    members = open_table(tmp_path, KnownBrokers())
    members.add(["broker-a"], synced=True)
    with replaced(FullDisk(0)):
        with pytest.raises(StoreFull):
            members.add(["broker-b"], synced=True)
        with pytest.raises(StoreFull):
            members.forget("broker-a")
    for each in (members, open_table(tmp_path, KnownBrokers())):
        assert each.known == {"broker-a": True}
