"""A start of a cluster finds the etcd that its register is on, and no other one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.keeper.errors import RegisterUnavailable
from raymq.cluster import registers
from raymq.cluster.config import ClusterConfig
from tests.etcd_servers import EtcdServers, etcd_servers


@pytest.fixture
def etcds(tmp_path: Path) -> Iterator[tuple[EtcdServers, EtcdServers]]:
    with contextlib.ExitStack() as opened:
        folders = tmp_path / "etcd-1", tmp_path / "etcd-2"
        for each in folders:
            each.mkdir()
        first, second = (opened.enter_context(etcd_servers(each)) for each in folders)
        yield first, second


def made(root: Path, *endpoints: str) -> object:
    root.mkdir(exist_ok=True)
    return registers.make("x", root, [], ClusterConfig.load({"etcd_endpoints": list(endpoints)}), {})


def test_a_start_with_another_etcd_is_refused(tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers]) -> None:
    """It came up: replica 1 was master with what it had, whoever had been in sync. And back at the right one all
    replicas were taken for copies of themselves, for good.
    """
    right, other = etcds
    location = made(tmp_path / "a", *right.endpoints)
    assert made(tmp_path / "a", *right.endpoints) == location
    with pytest.raises(InvalidInput, match="no register of this cluster"):
        made(tmp_path / "a", *other.endpoints)
    made(tmp_path / "a", *reversed(right.endpoints))
    with pytest.raises(InvalidInput, match="another cluster of this name"):
        made(tmp_path / "b", *right.endpoints)
    made(tmp_path / "b", *other.endpoints)
    with pytest.raises(InvalidInput, match="no register of this cluster"):
        made(tmp_path / "b", *right.endpoints)


def test_a_start_that_was_broken_off_is_repeated(
    tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registers, "_ASK_SECONDS", 0.0)
    with pytest.raises(RegisterUnavailable):
        made(tmp_path / "a", "http://127.0.0.1:1")
    made(tmp_path / "a", *etcds[0].endpoints)
