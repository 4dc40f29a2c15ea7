"""A cluster whose brokers have replicas on several hosts, with keepers, coordinators and a watched register."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from raymq.actors.keeper.acceptor import KeeperState
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_record import KeeperRecord
from tests.chaos.failover.host_cluster import CLUSTER, HostCluster
from tests.chaos.failover.hosts import Host
from tests.chaos.failover.recorded import Reigned
from tests.chaos.failover.register_watch import RegisterWatch, new_keeper_set
from tests.polling import poll_until
from tests.store_replication import log_content

_KEEPER_PORT: Final = 9700
_BEGIN_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 5.0


class ReplicatedCluster(HostCluster):
    """Groups of replicas, each replica on a host of its own; keepers are placed as on Ray.

    The first hosts have the first group's replicas; coordinators are on the last hosts.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hosts: int = 3,
        groups: int = 1,
        replicas: int = 2,
        replication: str = "sync",
        min_in_sync: int = 2,
        coordinators: int = 2,
        flush: str = "async",
    ) -> None:
        """Make more hosts if there are fewer than replicas."""
        super().__init__(folder, hosts=max(hosts, groups * replicas), groups=groups)
        self.replicas = replicas
        self.fewest_copies = min_in_sync
        self._policy: dict[str, Any] = {"replication": replication, "min_in_sync": min_in_sync}
        self._coordinators = coordinators
        self._flush = flush
        #: As `raymq.actors.keeper.serving.register_location`.
        self._register_at: dict[str, Any] = {}
        #: By host: its group, and its replica's number in the register.
        self._replica_of: dict[str, tuple[str, int]] = {}
        #: By group.
        self._watches: dict[str, RegisterWatch] = {}

    @property
    def reigned(self) -> list[Reigned]:
        return [each for watch in self._watches.values() for each in watch.reigned]

    def start(self) -> None:
        super().start()
        self._watches = {group: RegisterWatch(self._register_at, group) for group in self.groups}
        poll_until(self._is_whole, _BEGIN_SECONDS, "a master with all its replicas")

    def _place_brokers(self) -> None:
        hosts = list(self.hosts.values())
        self._register_at = register_at = self._place_register(hosts[: 5 if len(hosts) >= 5 else 3])
        places = [(group, replica) for group in self.groups for replica in range(self.replicas)]
        for (group, replica), host in zip(places, hosts, strict=False):
            self._replica_of[host.name] = group, replica + 1
            host.give("broker", {**self._broker_spec(host, group, replica), "keepers": register_at})
        for host in hosts[-self._coordinators :]:
            host.give(
                "coordinator", {"cluster": CLUSTER, "keepers": register_at, "groups": self.groups, **self._policy}
            )

    def _place_register(self, hosts: Sequence[Host]) -> dict[str, Any]:
        """Place the register's servers on hosts; return its location."""
        keepers = new_keeper_set(CLUSTER, {n: f"{host.address}:{_KEEPER_PORT}" for n, host in enumerate(hosts, 1)})
        for number, host in enumerate(hosts, 1):
            file = DurableKeeperFile(host.disk / f"keeper-{number}.record")
            file.save(KeeperRecord(CLUSTER, number, keepers.members[number].incarnation, keepers))
            spec = {"number": number, "cluster": CLUSTER, "directory": str(host.disk), "host": host.address}
            host.give("keeper", {**spec, "port": _KEEPER_PORT})
        return keepers.to_json()

    def _broker_spec(self, host: Host, group: str, replica: int) -> dict[str, Any]:
        return {
            "name": group,
            "cluster": CLUSTER,
            "directory": str(host.disk / (f"{group}.{replica}" if replica else group)),
            "host": host.address,
            "name_servers": self.name_servers,
            "store": {**self._store, "flush": self._flush},
            "replica": replica,
            "replicas": self.replicas,
            **self._policy,
        }

    def masters(self) -> list[Host]:
        known = {group: watch.state.master for group, watch in self._watches.items() if watch.state is not None}
        return [self.hosts[name] for name, (group, number) in self._replica_of.items() if known.get(group) == number]

    def may_lose(self, host: Host) -> bool:
        group, number = self._replica_of[host.name]
        return bool(self._watches[group].settled_in_sync() - {number})

    def take_in_keepers(self) -> None:
        """Admit keepers that lost their files again; the next call does the rest."""
        watch = self._watches[self.groups[0]]
        for host in self._keeper_hosts():
            if self._is_empty(host):
                number = host.spec("keeper")["number"]
                watch.take_in(
                    number, f"{host.address}:{_KEEPER_PORT}", lambda made, host=host: self._begin_anew(host, made)
                )

    def _keeper_hosts(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.has("keeper")]

    def _is_empty(self, host: Host) -> bool:
        return self._asked(host, "keeper status").get("state") == KeeperState.EMPTY.value

    def _begin_anew(self, host: Host, incarnation: str) -> None:
        self._asked(host, f"keeper anew {incarnation}")

    def _asked(self, host: Host, question: str) -> dict[str, Any]:
        """Send the host's keeper a command; return its answer, {} without one."""
        keeper = host.up.get("keeper")
        if keeper is None or "keeper" in host.paused:
            return {}
        keeper.said = {}
        keeper.tell(question)
        end = time.monotonic() + _ANSWER_SECONDS
        while not keeper.said and not keeper.is_dead and time.monotonic() < end:
            time.sleep(0.01)
        return keeper.said

    def _is_whole(self) -> bool:
        return not self._missing(0.0)

    def _missing(self, since: float) -> str:
        return "; ".join(filter(None, (self._missing_in(group, since) for group in self.groups)))

    def _missing_in(self, group: str, since: float) -> str:
        watch = self._watches[group]
        state = watch.state
        if state is None or watch.seen_at <= since:
            return f"the register of {group} cannot be read"
        if state.master is None:
            return f"{group} has no master in epoch {state.epoch}"
        if len(state.in_sync) < self.replicas:
            epoch_text = f"master {state.master}, epoch {state.epoch}"
            return f"only {sorted(state.in_sync)} of {self.replicas} of {group} are in sync, {epoch_text}"
        status = watch.master_status()
        if status is None or not status.serves:
            return f"master {state.master} of {group} does not serve"
        away = [number for number, lag in status.lags.items() if not lag.connected]  # and not out of the set yet
        return f"replicas {away} of {group} do not follow" if away else ""

    def why_not_well(self, since: float) -> str:
        empty = [host.name for host in self._keeper_hosts() if self._is_empty(host)]
        if empty:
            self.take_in_keepers()
            return f"keepers of {empty} have no voice"
        return self._missing(since) or super().why_not_well(since)

    def stop(self) -> list[str]:
        """Stop coordinators first, then the rest; return failed stops and differing copies."""
        for host in self.hosts.values():
            host.kill("coordinator")
        for watch in self._watches.values():
            watch.stop()
        found = super().stop()
        for group in self.groups:
            hosts = [self.hosts[name] for name, (of, _) in self._replica_of.items() if of == group]
            found += differences({host.name: log_content(Path(host.spec("broker")["directory"])) for host in hosts})
        return found


def differences(logs: Mapping[str, Mapping[str, bytes]]) -> list[str]:
    """Return where logs that should be equal differ."""
    found = []
    [(first, log), *others] = logs.items()
    for name, other in others:
        for file in sorted(log.keys() & other.keys()):
            one, another = log[file].rstrip(b"\0"), other[file].rstrip(b"\0")  # one may be shorter than the other
            if not (one.startswith(another) or another.startswith(one)):
                at = next(i for i, (a, b) in enumerate(zip(one, another, strict=False)) if a != b)
                found.append(f"the logs of {first} and {name} differ at {int(file) + at}")
                break
    return found
