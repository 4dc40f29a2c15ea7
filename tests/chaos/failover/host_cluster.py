"""A cluster without Ray on simulated hosts: name servers, brokers, keepers and a coordinator."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.chaos.failover.hosts import Host
from tests.chaos.failover.loaded_cluster import LoadedCluster
from tests.chaos.failover.network import Network
from tests.chaos.failover.server_spawner import ServerSpawner

CLUSTER: Final = "chaos"
CLIENTS: Final = "clients"
NAMES_PORT: Final = 9876
#: Small files, which change all the time; the disk of the machine that runs this may be nearly full.
STORE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "commitlog_file_bytes": 1 << 22,
        "index_slots": 1_000,
        "index_entries": 20_000,
        "consume_queue_file_entries": 20_000,
        "disk_refuse_ratio": 1.0,
    }
)


class HostCluster(LoadedCluster):
    """`groups` brokers of one copy, one per host, with a name server on each of the first two."""

    def __init__(self, folder: Path, *, hosts: int, groups: int, store: Mapping[str, Any] = STORE) -> None:
        super().__init__(folder, [f"broker-{chr(ord('a') + number)}" for number in range(groups)])
        self._names = [f"h{number}" for number in range(1, hosts + 1)]
        self.network = Network([*self._names, CLIENTS])
        self._store = dict(store)
        self.hosts: dict[str, Host] = {}

    @property
    def name_servers(self) -> list[str]:
        return [f"{host.address}:{NAMES_PORT}" for host in self.hosts.values() if host.has("names")]

    @property
    def inside_clients(self) -> Sequence[str]:
        return self.network.inside(CLIENTS)

    def start(self) -> None:
        """Make the network and start everything."""
        self.network.__enter__()
        (self.folder / "logs").mkdir(exist_ok=True)
        self._nursery = ServerSpawner(self.folder / "logs" / "nursery.log")
        self.hosts = {name: Host(name, self.network, self._nursery, self.folder) for name in self._names}
        for index, host in enumerate(list(self.hosts.values())[:2]):
            host.give("names", {"index": index, "directory": str(host.disk), "host": host.address, "port": NAMES_PORT})
        self._place_brokers()
        for host in self.hosts.values():
            host.start_all()

    def _place_brokers(self) -> None:
        for name, host in zip(self.groups, self.hosts.values(), strict=False):
            spec = {
                "name": name,
                "cluster": CLUSTER,
                "directory": str(host.disk / name),
                "host": host.address,
                "name_servers": self.name_servers,
                "store": self._store,
            }
            host.give("broker", spec)

    def stop(self) -> list[str]:
        """Stop in order; return the servers that did not end with 0."""
        found = [
            f"{what} of {host.name} ended with {code}; see {host.logs}"
            for host in self.hosts.values()
            for what, code in host.stop_all().items()
            if code
        ]
        self._nursery.close()
        self.network.__exit__(None, None, None)
        return found

    def masters(self) -> list[Host]:
        """Return the hosts whose brokers are masters, as far as known."""
        return [host for host in self.hosts.values() if host.has("broker")]

    def may_lose(self, host: Host) -> bool:
        """Check whether another host certainly has everything acknowledged, while this one's servers are dead."""
        return False

    def take_in_keepers(self) -> None:
        """Admit keepers that lost their files; this cluster has none."""

    def tell_where(self) -> None:
        for host in self.hosts.values():
            for what, process in host.up.items():
                if not host.is_program(what):
                    process.signal(signal.SIGUSR1)  # also one whose event loop is blocked
                    process.signal(signal.SIGUSR2)

    def mend(self) -> None:
        for sender, receiver in list(self.network.cuts):
            self.network.mend(sender, receiver)
        for host in self.hosts.values():
            host.go_on()
            host.start_all()
