"""Test that known brokers are kept over restarts, until one is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.tables.known_brokers import KnownBrokers


def test_known_brokers_and_met_flags_survive_restarts(tmp_path: Path) -> None:
    members = KnownBrokers(tmp_path)
    assert members.known == {}
    members.add(["broker-a", "broker-b"], met=False)
    members.add(["broker-b"], met=True)
    members.add(["broker-b", "broker-c"], met=False)
    assert members.known == KnownBrokers(tmp_path).known == {"broker-a": False, "broker-b": True, "broker-c": False}
    members.forget("broker-b")
    members.forget("nobody")
    assert members.known == KnownBrokers(tmp_path).known == {"broker-a": False, "broker-c": False}


@pytest.mark.parametrize("name", ["", "a/b", "a\0", "x" * 128])
def test_invalid_broker_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        KnownBrokers(tmp_path).add([name], met=True)
    assert list(tmp_path.iterdir()) == []


def test_brokers_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    members = KnownBrokers(tmp_path, most=2)
    members.add(["a", "b"], met=False)
    with pytest.raises(InvalidInput, match="at most 2"):
        members.add(["c"], met=False)
    members.add(["b"], met=True)
    assert members.known == {"a": False, "b": True}


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\xa1k\xa12\xa1a", b"\x81\x01\xc3"])
def test_damaged_file_forgets_all_brokers(tmp_path: Path, content: bytes) -> None:
    KnownBrokers(tmp_path).add(["broker-b"], met=True)
    (tmp_path / "raymq" / "members").write_bytes(content)
    members = KnownBrokers(tmp_path)
    assert members.known == {}
    members.add(["broker-b"], met=False)
    assert members.known == {"broker-b": False}
