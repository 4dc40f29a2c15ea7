"""Which brokers were ever there is known over restarts, until one is said to be gone for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.tables.known_brokers import KnownBrokers


def test_members_stay_known_over_restarts_and_whom_was_met_stays_met(tmp_path: Path) -> None:
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
def test_what_no_broker_is_called_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        KnownBrokers(tmp_path).add([name], met=True)
    assert list(tmp_path.iterdir()) == []


def test_so_many_are_known_at_most(tmp_path: Path) -> None:
    members = KnownBrokers(tmp_path, most=2)
    members.add(["a", "b"], met=False)
    with pytest.raises(InvalidInput, match="at most 2"):
        members.add(["c"], met=False)
    members.add(["b"], met=True)
    assert members.known == {"a": False, "b": True}


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\xa1k\xa12\xa1a", b"\x81\x01\xc3"])
def test_a_damaged_file_has_everybody_met_again(tmp_path: Path, content: bytes) -> None:
    KnownBrokers(tmp_path).add(["broker-b"], met=True)
    (tmp_path / "raymq" / "members").write_bytes(content)
    members = KnownBrokers(tmp_path)
    assert members.known == {}
    members.add(["broker-b"], met=False)
    assert members.known == {"broker-b": False}
