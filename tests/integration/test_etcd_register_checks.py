"""Test that a cluster uses only the etcd with its register and compacts the history there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from raymq.actors.errors import InvalidInput
from raymq.actors.keeper.errors import RegisterError, RegisterHeld, RegisterUnavailable
from raymq.actors.keeper.etcd import etcd_register
from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.master_lease import claim_of
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.register_location import open_register
from raymq.cluster import register_setup
from raymq.cluster.cluster_config import ClusterConfig
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.unit.actors.keeper.in_memory_keepers import group_with_master


@pytest.fixture
def etcds(tmp_path: Path) -> Iterator[tuple[EtcdServers, EtcdServers]]:
    with contextlib.ExitStack() as opened:
        folders = tmp_path / "etcd-1", tmp_path / "etcd-2"
        for each in folders:
            each.mkdir()
        first, second = (opened.enter_context(etcd_servers(each)) for each in folders)
        yield first, second


def make_register(root: Path, *endpoints: str) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    return register_setup.make("x", root, [], ClusterConfig.load({"etcd_endpoints": list(endpoints)}), {})


def test_start_with_wrong_etcd_is_refused(tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers]) -> None:
    """Cover a regression: a start with another etcd made a possibly stale replica master.

    Replica 1 became master even if it had not been in sync. Back on the right etcd, all replicas were permanently
    treated as copies of themselves.
    """
    right, other = etcds
    location = make_register(tmp_path / "a", *right.endpoints)
    assert make_register(tmp_path / "a", *right.endpoints) == location
    with pytest.raises(InvalidInput, match="no register of this cluster"):
        make_register(tmp_path / "a", *other.endpoints)
    make_register(tmp_path / "a", *reversed(right.endpoints))
    with pytest.raises(InvalidInput, match="another cluster of this name"):
        make_register(tmp_path / "b", *right.endpoints)
    make_register(tmp_path / "b", *other.endpoints)
    with pytest.raises(InvalidInput, match="no register of this cluster"):
        make_register(tmp_path / "b", *right.endpoints)


def test_emptied_etcd_is_refused_by_running_cluster(tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers]) -> None:
    """Cover a regression: the coordinator registered its groups again on an emptied etcd.

    All brokers then permanently treated their stores as copies of others, even when the right etcd was back.
    """
    location = make_register(tmp_path / "a", *etcds[0].endpoints)
    emptied = {"etcd": {**location["etcd"], "endpoints": etcds[1].endpoints}}

    async def error_of(fields: dict[str, Any], act: Callable[[Register], Awaitable[object]]) -> type | None:
        opened = open_register(fields, None)
        try:
            await act(opened.register)
        except RegisterError as error:
            return type(error)
        finally:
            await opened.close()
        return None

    async def run() -> None:
        state = group_with_master()
        claim = claim_of(state)
        assert claim is not None
        acts: list[Callable[[Register], Awaitable[object]]] = [
            lambda register: register.read("g"),
            lambda register: register.settle("g"),
            lambda register: register.groups(),
            lambda register: register.change("g", Registered(), state),
            lambda register: register.renew("g", claim),
        ]
        for act in acts:
            assert await error_of(emptied, act) is RegisterUnavailable
            assert await error_of(location, act) is None
        assert await error_of(emptied, lambda register: register.release("g", claim)) is None

    asyncio.run(run())
    unchecked = {"etcd": {**emptied["etcd"], "cluster": None}}
    assert asyncio.run(error_of(unchecked, lambda register: register.read("g"))) is None, "it is there, and empty"


def test_interrupted_register_setup_can_be_repeated(
    tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register_setup, "_REQUEST_SECONDS", 0.0)
    with pytest.raises(RegisterUnavailable):
        make_register(tmp_path / "a", "http://127.0.0.1:1")
    make_register(tmp_path / "a", *etcds[0].endpoints)


def test_old_key_revisions_are_compacted(
    etcds: tuple[EtcdServers, EtcdServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: after 2 GiB of renewals etcd refused writes and all masters ended.

    Ten groups reached that size within days.
    """
    monkeypatch.setattr(etcd_register, "_HISTORY_SECONDS", 0.0)
    endpoint, key = etcds[0].endpoints[0], base64.b64encode(b"/x/leases/g").decode()

    def lease(revision: int = 0) -> Any:
        fields = {"key": key, "revision": str(revision)}
        return json.loads(urllib3.request("POST", f"{endpoint}/v3/kv/range", json=fields).data)

    async def run() -> None:
        with contextlib.closing(EtcdRegister(etcds[0].endpoints, "/x")) as register:
            claim = claim_of((await register.change("g", Registered(), group_with_master())).value)
            assert claim is not None
            await register.renew("g", claim)
            first = int(lease()["kvs"][0]["mod_revision"])
            assert lease(first)["kvs"]
            for _ in range(3):
                await register.renew("g", claim)
                assert register._forgetting is not None
                await register._forgetting
            assert lease(first)["code"] == 11, "it has been compacted"
            assert claim_of((await register.read("g")).value) == claim

    asyncio.run(run())


def test_lease_copied_from_another_etcd_is_ignored(etcds: tuple[EtcdServers, EtcdServers]) -> None:
    """Cover leases copied by `etcdctl make-mirror`, which never expire: elections were blocked."""
    key, value = (base64.b64encode(each).decode() for each in (b"/x/leases/g", b"{}"))

    def copy() -> None:
        urllib3.request("POST", f"{etcds[0].endpoints[0]}/v3/kv/put", json={"key": key, "value": value})

    async def run() -> None:
        with contextlib.closing(EtcdRegister(etcds[0].endpoints, "/x")) as register:
            now = await register.change("g", Registered(), group_with_master())
            claim = claim_of(now.value)
            assert claim is not None
            copy()
            await register.renew("g", claim)
            with pytest.raises(RegisterHeld):
                await register.change("g", now, group_with_master().start_election())
            copy()
            assert (
                await register.change("g", now, group_with_master().start_election())
            ).value == group_with_master().start_election()

    asyncio.run(run())
