"""A cluster of replicas whose register is on etcd with three or five servers, one on each of the first hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from raymq.actors.keeper.serving.register_location import etcd_location
from raymq.actors.protocol import Etcd
from tests.chaos.failover.host_cluster import CLUSTER
from tests.chaos.failover.hosts import Host
from tests.chaos.failover.replicated_cluster import ReplicatedCluster

_CLIENT_PORT: Final = 2379
_PEER_PORT: Final = 2380


class EtcdCluster(ReplicatedCluster):
    """An etcd server's data is on a disk of its own, which no fault loses.

    A server that lost its data must not return as the same member: an operator has to add a new one.
    """

    def _place_register(self, hosts: Sequence[Host]) -> dict[str, Any]:
        peers = {host.name: f"http://{host.address}:{_PEER_PORT}" for host in hosts}
        clients = {host.name: f"http://{host.address}:{_CLIENT_PORT}" for host in hosts}
        for host in hosts:
            options = {
                "name": host.name,
                "data-dir": str(self.folder / f"etcd-{host.name}"),
                "listen-client-urls": clients[host.name],
                "advertise-client-urls": clients[host.name],
                "listen-peer-urls": peers[host.name],
                "initial-advertise-peer-urls": peers[host.name],
                "initial-cluster": ",".join(f"{name}={address}" for name, address in peers.items()),
                "logger": "zap",
            }
            host.give("etcd", {"program": ["etcd", *(f"--{option}={value}" for option, value in options.items())]})
        return etcd_location(Etcd(tuple(clients.values())), CLUSTER)
