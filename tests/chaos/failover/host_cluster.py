"""A cluster without Ray on hosts of its own: name servers, brokers and what replicas need, as Ray would place them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.chaos.failover.hosts import Host, Process
from tests.chaos.failover.network import Network
from tests.chaos.failover.nursery import Nursery
from tests.chaos.failover.recorded import Reigned

CLUSTER: Final = "chaos"
CLIENTS: Final = "clients"
NAMES_PORT: Final = 9876
#: Small files, so that they are changed all the time; the disk of whoever runs this may be as full as it likes.
STORE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "commitlog_file_bytes": 1 << 22,
        "index_slots": 1_000,
        "index_entries": 20_000,
        "consume_queue_file_entries": 20_000,
        "disk_refuse_ratio": 1.0,
    }
)
_LOAD: Final = Path(__file__).with_name("load.py")


class HostCluster:
    """`groups` brokers of one copy, one a host, with a name server on each of the first two."""

    def __init__(self, folder: Path, *, hosts: int, groups: int, store: Mapping[str, Any] = STORE) -> None:
        self.folder = folder
        self._names = [f"h{number}" for number in range(1, hosts + 1)]
        self.network = Network([*self._names, CLIENTS])
        #: The names of the groups.
        self.groups = [f"broker-{chr(ord('a') + number)}" for number in range(groups)]
        self._store = dict(store)
        self.hosts: dict[str, Host] = {}
        self.load: Process | None = None

    @property
    def name_servers(self) -> list[str]:
        return [f"{host.address}:{NAMES_PORT}" for host in self.hosts.values() if host.has("names")]

    def start(self) -> None:
        """Make the network and start everything."""
        self.network.__enter__()
        (self.folder / "logs").mkdir(exist_ok=True)
        self._nursery = Nursery(self.folder / "logs" / "nursery.log")
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

    def start_load(self, seed: int, pause: float) -> None:
        """Let clients work, on a host of their own."""
        program = [*self.network.inside(CLIENTS), sys.executable, str(_LOAD)]
        arguments = [";".join(self.name_servers), str(self.history), str(seed), str(pause)]
        log = self.folder / "logs" / "clients.log"
        with log.open("ab") as errors:
            made = subprocess.Popen(
                [*program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.load = Process(made, log)
        self.load.await_first_word(120.0)

    @property
    def history(self) -> Path:
        """What the clients write."""
        return self.folder / "clients.history"

    def last_ok(self, group: str) -> float:
        """When clients were told last that something is stored in that group."""
        assert self.load is not None
        return float(self.load.said.get("last_ok", {}).get(group, 0.0))

    def stop_load(self, drain_seconds: float) -> None:
        """Wait until consumers have all that was acknowledged, at most for so long."""
        assert self.load is not None
        self.load.tell("quiet")
        self.load.tell(f"drain {drain_seconds}")
        code = self.load.stop(drain_seconds + 180.0)
        if code:
            raise AssertionError(f"the clients ended with {code}; see {self.load.log}")
        self.load = None

    def stop(self) -> list[str]:
        """In good order; what did not end so."""
        found = [
            f"{what} of {host.name} ended with {code}; see {host.logs}"
            for host in self.hosts.values()
            for what, code in host.stop_all().items()
            if code
        ]
        self._nursery.close()
        self.network.__exit__(None, None, None)
        return found

    @property
    def replicas(self) -> int:
        """How many copies there are of a group."""
        return 1

    @property
    def fewest_copies(self) -> int:
        """How many copies there surely are of what was acknowledged."""
        return 1

    @property
    def reigned(self) -> list[Reigned]:
        """What the register said; there is none."""
        return []

    def masters(self) -> list[Host]:
        """The hosts whose brokers are masters, as far as that is known."""
        return [host for host in self.hosts.values() if host.has("broker")]

    def may_lose(self, host: Host) -> bool:
        """Whether another host surely has all that was acknowledged; this one's servers are dead."""
        return False

    def take_in_keepers(self) -> None:
        """Give keepers that have lost their files a voice again; there are none."""

    def is_well(self, since: float) -> bool:
        """Whether clients were served after a moment, and all that should be there is."""
        return not self.why_not_well(since)

    def why_not_well(self, since: float) -> str:
        """What is in the way of that; "" if nothing is."""
        silent = [group for group in self.groups if self.last_ok(group) <= since]
        return f"nothing was acknowledged by {', '.join(silent)}" if silent else ""

    def tell_where(self) -> None:
        """Have each server write into its log where its threads and tasks are."""
        for host in self.hosts.values():
            for process in host.up.values():
                process.signal(signal.SIGUSR1)  # also one whose loop stands still
                process.signal(signal.SIGUSR2)

    def mend(self) -> None:
        """Undo whatever may be left of any fault."""
        for sender, receiver in list(self.network.cuts):
            self.network.mend(sender, receiver)
        for host in self.hosts.values():
            host.go_on()
            host.start_all()
