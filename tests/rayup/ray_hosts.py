"""The cluster that `ray up` has made, as who breaks it and who judges it sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.cluster import keeper_bootstrap
from raymq.storage.files import json_file
from tests.chaos.failover.loaded_cluster import LoadedCluster
from tests.chaos.failover.recorded import Reigned
from tests.chaos.failover.register_watch import RegisterWatch
from tests.chaos.failover.replicated_cluster import differences
from tests.rayup.hosts import Hosts
from tests.store_replication import log_content

#: Between two sends of a client, about: three Rays share this machine with them.
LOAD_PAUSE_SECONDS: Final = 0.1
_ROOT: Final = "raymq-data"


class RayHosts(LoadedCluster):
    """Hosts with Ray, three broker groups of two copies; the first host is Ray's head."""

    replicas = 2
    fewest_copies = 2

    def __init__(self, folder: Path, hosts: Hosts, up: Callable[[], object], why_not_whole: Callable[[], str]) -> None:
        """Args:
        up: what starts Ray and RayMQ again on the head, as an operator does.
        why_not_whole: what of RayMQ is not there; "": nothing.
        """
        super().__init__(folder, ["broker-a", "broker-b", "broker-c"])
        (folder / "logs").mkdir(exist_ok=True)
        self.hosts = hosts
        self.up = up
        self._why_not_whole = why_not_whole
        known = self._keepers().to_json()
        self._watches = [RegisterWatch(known, group) for group in self.groups]

    @property
    def head(self) -> str:
        """The host with Ray's head, a name server, and brokers."""
        return self.hosts.names[0]

    @property
    def name_servers(self) -> list[str]:
        return [f"{self.hosts.address(name)}:9876" for name in self.hosts.names]

    @property
    def reigned(self) -> list[Reigned]:
        return [each for watch in self._watches for each in watch.reigned]

    def why_not_well(self, since: float) -> str:
        return super().why_not_well(since) or self._why_not_whole()

    def tell_where(self) -> None:
        """What Ray and its actors say is in the hosts' folders already."""

    def mend(self) -> None:
        for name in self.hosts.names:
            if not self.hosts.is_on(name):
                self.hosts.start(name)
        self.up()

    def close(self) -> None:
        """Look at the register no more."""
        for watch in self._watches:
            watch.stop()

    def differing_copies(self) -> list[str]:
        """Where the logs of a group that has been stopped are not one log."""
        found = []
        for group in self.groups:
            copies: Mapping[str, Path] = {
                f"{directory.name} on {name}": directory
                for name in self.hosts.names
                for directory in sorted((self.hosts.home(name) / _ROOT).glob(f"{group}*"))
            }
            if len(copies) != self.replicas:
                found.append(f"{group} has copies {', '.join(copies)}")
            found += differences({name: log_content(directory) for name, directory in copies.items()})
        return found

    def _keepers(self) -> KeeperSet:
        file = self.hosts.home(self.head) / _ROOT / keeper_bootstrap.LAYOUT_FILE
        layout = json_file.load_as(file, keeper_bootstrap.KeeperLayout.from_json)
        assert layout is not None, file
        return layout.known
