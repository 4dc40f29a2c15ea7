"""A start of a cluster finds the etcd that its register is on, and no other one; and does not fill it."""

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
from tests.unit.actors.keeper.keepers_at_hand import mastered


@pytest.fixture
def etcds(tmp_path: Path) -> Iterator[tuple[EtcdServers, EtcdServers]]:
    with contextlib.ExitStack() as opened:
        folders = tmp_path / "etcd-1", tmp_path / "etcd-2"
        for each in folders:
            each.mkdir()
        first, second = (opened.enter_context(etcd_servers(each)) for each in folders)
        yield first, second


def made(root: Path, *endpoints: str) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    return register_setup.make("x", root, [], ClusterConfig.load({"etcd_endpoints": list(endpoints)}), {})


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


def test_an_etcd_that_was_emptied_is_no_register_of_a_cluster_that_runs(
    tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers]
) -> None:
    """The coordinator founded its groups there, and all brokers took themselves for copies of others, for good: also
    when the right one was back.
    """
    location = made(tmp_path / "a", *etcds[0].endpoints)
    emptied = {"etcd": {**location["etcd"], "endpoints": etcds[1].endpoints}}

    async def ends_with(told: dict[str, Any], act: Callable[[Register], Awaitable[object]]) -> type | None:
        opened = open_register(told, None)
        try:
            await act(opened.register)
        except RegisterError as error:
            return type(error)
        finally:
            await opened.close()
        return None

    async def run() -> None:
        state = mastered()
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
            assert await ends_with(emptied, act) is RegisterUnavailable
            assert await ends_with(location, act) is None
        assert await ends_with(emptied, lambda register: register.release("g", claim)) is None

    asyncio.run(run())
    unchecked = {"etcd": {**emptied["etcd"], "cluster": None}}
    assert asyncio.run(ends_with(unchecked, lambda register: register.read("g"))) is None, "it is there, and empty"


def test_a_start_that_was_broken_off_is_repeated(
    tmp_path: Path, etcds: tuple[EtcdServers, EtcdServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register_setup, "_REQUEST_SECONDS", 0.0)
    with pytest.raises(RegisterUnavailable):
        made(tmp_path / "a", "http://127.0.0.1:1")
    made(tmp_path / "a", *etcds[0].endpoints)


def test_what_keys_were_long_ago_is_forgotten(
    etcds: tuple[EtcdServers, EtcdServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took no write any more after 2 GiB of renewals, and all masters ended: of ten groups within days."""
    monkeypatch.setattr(etcd_register, "_HISTORY_SECONDS", 0.0)
    endpoint, key = etcds[0].endpoints[0], base64.b64encode(b"/x/leases/g").decode()

    def lease(revision: int = 0) -> Any:
        told = {"key": key, "revision": str(revision)}
        return json.loads(urllib3.request("POST", f"{endpoint}/v3/kv/range", json=told).data)

    async def run() -> None:
        with contextlib.closing(EtcdRegister(etcds[0].endpoints, "/x")) as register:
            claim = claim_of((await register.change("g", Registered(), mastered())).value)
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


def test_a_lease_that_was_copied_from_another_etcd_is_none(etcds: tuple[EtcdServers, EtcdServers]) -> None:
    """Such a copy, as `etcdctl make-mirror` makes one, has no end: the group had no master any more."""
    key, value = (base64.b64encode(each).decode() for each in (b"/x/leases/g", b"{}"))

    def copy() -> None:
        urllib3.request("POST", f"{etcds[0].endpoints[0]}/v3/kv/put", json={"key": key, "value": value})

    async def run() -> None:
        with contextlib.closing(EtcdRegister(etcds[0].endpoints, "/x")) as register:
            now = await register.change("g", Registered(), mastered())
            claim = claim_of(now.value)
            assert claim is not None
            copy()
            await register.renew("g", claim)
            with pytest.raises(RegisterHeld):
                await register.change("g", now, mastered().start_election())
            copy()
            assert (await register.change("g", now, mastered().start_election())).value == mastered().start_election()

    asyncio.run(run())
