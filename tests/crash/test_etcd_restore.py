"""Restore an etcd from a backup while its group runs: the in-sync set in the register is then outdated."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
from raymq.actors.keeper.serving.register_location import etcd_location
from raymq.actors.protocol import Etcd
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.polling import poll_until
from tests.replica_clients import QUEUES, Clients, numbered
from tests.replica_group import ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


class EtcdGroup(ReplicaGroup):
    """A group whose register is on etcd; its keepers are not used."""

    def __init__(self, folder: Path, servers: EtcdServers) -> None:
        super().__init__(folder)
        self._servers = servers

    def spec(self, number: int, **changes: Any) -> dict[str, Any]:
        location = etcd_location(Etcd(tuple(self._servers.endpoints)), "test")
        return super().spec(number, **{"keepers": location, **changes})

    async def _begin(self) -> None:
        await super()._begin()
        self.register = EtcdRegister(self._servers.endpoints, "/raymq/test")  # type: ignore[assignment]


def replace_data(servers: EtcdServers, begin: Path, end: Path) -> None:
    """Stop the servers, replace one folder's content by the other's, and restart them."""
    for number in range(3):
        servers.kill(number)
    shutil.rmtree(end, ignore_errors=True)
    shutil.copytree(begin, end)
    servers.go_on()
    servers.await_health()


def test_master_rewrites_in_sync_set_after_etcd_restore(tmp_path: Path) -> None:
    """The register's old in-sync set got a replica elected that lacked newer acknowledged messages."""
    at, backup, folder = (tmp_path / each for each in ("etcd", "backup", "group"))
    at.mkdir()
    folder.mkdir()
    with etcd_servers(at) as servers, EtcdGroup(folder, servers) as group:
        group.begin()
        clients = Clients(group)
        with contextlib.closing(clients.mq):
            clients.admin.create_topic("t", queues=QUEUES)
            clients.send(*numbered(0, 10))
            group.await_in_sync(1, 2)
            replace_data(servers, at, backup)
            group.await_serving(1)
            group.kill(2)
            group.await_in_sync(1)
            clients.send(*numbered(10, 20))
            replace_data(servers, backup, at)  # it has both replicas in sync
            group.await_in_sync(1)
            group.await_serving(1)
            clients.send(*numbered(20, 30))
            group.start(2)
            group.await_in_sync(1, 2)
            poll_until(lambda: set(clients.bodies()) == set(numbered(0, 30)), 20)
