"""The faults of a cluster of hosts. Each is an object: made, begun, ended once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import ClassVar, Final

from tests.chaos.failover.breaking import Breaking
from tests.chaos.failover.checks import CLOCK_JUMP
from tests.chaos.failover.host_cluster import CLIENTS, HostCluster
from tests.chaos.failover.hosts import Host
from tests.chaos.failover.recorded import STAYS

FAR_SECONDS: Final = 3600


@dataclass
class HostBreaking(Breaking[HostCluster]):
    """A fault of hosts and their servers."""

    @classmethod
    def is_possible(cls, cluster: HostCluster) -> bool:
        return any(host.has("broker") for host in cluster.hosts.values())

    def _broker_host(self) -> Host:
        """Choose a host with a broker, preferably one with a master."""
        hosts = self._hosts_with("broker")
        masters = [host for host in self.cluster.masters() if host in hosts]
        others = [host for host in hosts if host not in masters]
        return self.chance.choice(masters if masters and (not others or self.chance.random() < 0.6) else others)

    def _host_with(self, what: str) -> Host:
        return self.chance.choice(self._hosts_with(what))

    def _hosts_with(self, what: str) -> list[Host]:
        hosts = [host for host in self.cluster.hosts.values() if host.has(what)]
        return [host for host in hosts if host.name not in self.spared] or hosts


@dataclass
class _OfProcess(HostBreaking):
    """A fault of a server's process."""

    what: ClassVar[str] = "broker"
    _host: Host | None = None

    @classmethod
    def is_possible(cls, cluster: HostCluster) -> bool:
        return any(host.has(cls.what) for host in cluster.hosts.values())

    @property
    def host(self) -> Host:
        if self._host is None:
            self._host = self._broker_host() if self.what == "broker" else self._host_with(self.what)
            self.spared.add(self._host.name)
            self.target = f"{self.what} of {self._host.name}"
        return self._host


class KillBroker(_OfProcess):
    name = "SIGKILL of a broker"

    def begin(self) -> None:
        self.host.kill(self.what)

    def end(self) -> None:
        self.host.start_all()


class KillNameServer(KillBroker):
    name, what = "SIGKILL of a name server", "names"
    spares_brokers = True


class KillKeeper(KillBroker):
    name, what = "SIGKILL of a keeper", "keeper"
    spares_brokers = True


class KillCoordinator(KillBroker):
    name, what = "SIGKILL of the coordinator", "coordinator"
    spares_brokers = True


class KillEtcd(KillBroker):
    name, what = "SIGKILL of an etcd server", "etcd"
    spares_brokers = True


class PauseBroker(_OfProcess):
    name = "SIGSTOP of a broker"
    holds = (1.0, 8.0)

    def begin(self) -> None:
        self.host.pause(self.what)

    def end(self) -> None:
        self.host.go_on()


class PauseKeeper(PauseBroker):
    name, what = "SIGSTOP of a keeper", "keeper"
    spares_brokers = True


class PauseCoordinator(PauseBroker):
    name, what = "SIGSTOP of the coordinator", "coordinator"
    spares_brokers = True


class PauseEtcd(PauseBroker):
    name, what = "SIGSTOP of an etcd server", "etcd"
    spares_brokers = True


class EmptyKeeper(_OfProcess):
    """Delete a keeper's files; the majority of the others has to admit it again."""

    name, what = "emptied keeper", "keeper"
    loses = spares_brokers = True

    def begin(self) -> None:
        self.host.kill(self.what)
        for file in self.host.disk.glob("keeper-*"):
            file.unlink()
        self.host.start_all()

    def end(self) -> None:
        self.cluster.take_in_keepers()


class _OfHost(_OfProcess):
    """A fault of everything on a broker's host."""

    @property
    def host(self) -> Host:
        if self._host is None:
            self._host = self._broker_host()
            self.spared.add(self._host.name)
            self.target = self._host.name
        return self._host


class KillHost(_OfHost):
    name = "a host's processes killed"

    def begin(self) -> None:
        self.host.kill_all()

    def end(self) -> None:
        self.host.start_all()


class LoseHost(_OfHost):
    """Lose a host with its disk; an empty one replaces it."""

    name = "loss of a host"
    loses = True

    @classmethod
    def is_possible(cls, cluster: HostCluster) -> bool:
        return cluster.replicas > 1

    def begin(self) -> None:
        self.host.kill_all()
        if self.cluster.may_lose(self.host):
            self.host.wipe()
        else:
            self.target += STAYS

    def end(self) -> None:
        self.host.start_all()
        self.cluster.take_in_keepers()


class PauseHost(_OfHost):
    """Stop a host, as a machine that sleeps or is moved."""

    name = "a host stands still"
    holds = (1.0, 8.0)

    def begin(self) -> None:
        for what in list(self.host.up):
            self.host.pause(what)

    def end(self) -> None:
        self.host.go_on()


class SuspendHost(PauseHost):
    """Stop a host as a suspended virtual machine, so long that the cluster has replaced its broker."""

    name = "a host is suspended"
    holds = (30.0, 45.0)


@dataclass
class _OfNetwork(_OfHost):
    _cuts: list[tuple[str, str]] = field(default_factory=list)

    def _cut(self, *cuts: tuple[str, str]) -> None:
        for cut in cuts:
            if cut not in self.cluster.network.cuts:
                self._cuts.append(cut)
                self.cluster.network.cut(*cut)

    def _others(self) -> list[str]:
        return [name for name in self.cluster.hosts if name != self.host.name]

    def end(self) -> None:
        for cut in self._cuts:
            self.cluster.network.mend(*cut)


class Isolate(_OfNetwork):
    name = "partition: a host from all"
    holds = (2.0, 10.0)

    def begin(self) -> None:
        for other in [*self._others(), CLIENTS]:
            self._cut((self.host.name, other), (other, self.host.name))


class Separate(_OfNetwork):
    """Cut a host from the other hosts; clients reach both sides."""

    name = "partition: a host from hosts"
    holds = (2.0, 10.0)

    @classmethod
    def is_possible(cls, cluster: HostCluster) -> bool:
        return len(cluster.hosts) > 1

    def begin(self) -> None:
        for other in self._others():
            self._cut((self.host.name, other), (other, self.host.name))


class Mute(_OfNetwork):
    """Drop everything that a host sends; it still receives."""

    name = "partition: one way out"
    holds = (2.0, 10.0)

    def begin(self) -> None:
        for other in [*self._others(), CLIENTS]:
            self._cut((self.host.name, other))


class Deafen(_OfNetwork):
    """Drop everything that a host receives; it still sends."""

    name = "partition: one way in"
    holds = (2.0, 10.0)

    def begin(self) -> None:
        for other in [*self._others(), CLIENTS]:
            self._cut((other, self.host.name))


class OneWayBetween(_OfNetwork):
    """Drop one direction between two hosts; everything else works."""

    name = "partition: one way between two"
    holds = (2.0, 10.0)

    @classmethod
    def is_possible(cls, cluster: HostCluster) -> bool:
        return len(cluster.hosts) > 1

    def begin(self) -> None:
        pair = [self.host.name, self.chance.choice(self._others())]
        self.chance.shuffle(pair)
        self.target = " to ".join(pair)
        self._cut((pair[0], pair[1]))


class ClientsCutOff(_OfNetwork):
    """Cut a working master off from its clients."""

    name = "partition: clients from a host"
    holds = (2.0, 6.0)

    def begin(self) -> None:
        self._cut((CLIENTS, self.host.name), (self.host.name, CLIENTS))


class SlowNetwork(_OfHost):
    name = "slow network"
    holds = (3.0, 8.0)

    def begin(self) -> None:
        self.cluster.network.slow(self.host.name, "2mbit")

    def end(self) -> None:
        self.cluster.network.slow(self.host.name, None)


class _OfDisk(_OfProcess):
    mode: ClassVar[str] = ""
    holds = (2.0, 8.0)

    def begin(self) -> None:
        if "broker" in self.host.up:
            self.host.up["broker"].tell(self.mode)

    def end(self) -> None:
        if "broker" in self.host.up:
            self.host.up["broker"].tell("disk fine")


class SlowDisk(_OfDisk):
    name, mode = "slow disk", "disk slow 0.3"


class HangingDisk(_OfDisk):
    name, mode = "hanging disk", "disk hang"


class FullDisk(_OfDisk):
    name, mode = "full disk", "disk full"


class FailingDisk(_OfDisk):
    """Fail syncs; the broker is restarted, as it refuses writes after a failed flush."""

    name, mode = "failing disk", "disk fail"

    def end(self) -> None:
        self.host.kill("broker")
        self.host.start_all()


class ClockJump(_OfDisk):
    name = CLOCK_JUMP

    def begin(self) -> None:
        seconds = self.chance.choice((-FAR_SECONDS, -30, 30, FAR_SECONDS))
        if "broker" in self.host.up:
            self.host.up["broker"].tell(f"clock {seconds}")
        self.target = f"broker of {self.host.name} by {seconds} s"

    def end(self) -> None:
        if "broker" in self.host.up:
            self.host.up["broker"].tell("clock 0")


class CopiedDirectory(_OfHost):
    """Start a copy of a replica's directory on another host, as if it were that replica."""

    name = "copied directory"
    holds = (3.0, 6.0)

    @classmethod
    def is_possible(cls, cluster: HostCluster) -> bool:
        return cluster.replicas > 1

    def begin(self) -> None:
        other = self.cluster.hosts[self.chance.choice([name for name in self.cluster.hosts if name != self.host.name])]
        self.target = f"{self.host.name} to {other.name}"
        self._other = other
        copy = other.disk / "copy"
        shutil.copytree(self.host.spec("broker")["directory"], copy, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        other.give("copy", {**self.host.spec("broker"), "directory": str(copy), "host": other.address})
        other.begin("copy")

    def end(self) -> None:
        self._other.kill("copy")
        self._other.take_away("copy")
        shutil.rmtree(self._other.disk / "copy", ignore_errors=True)


class Forget(_OfProcess):
    """A planted bug, not a fault: reset a broker's directory to an earlier state, as if it had not written."""

    name = "a broker that forgets"
    holds = (2.0, 3.0)

    def begin(self) -> None:
        self._past = self.host.disk.parent / f"{self.host.name}-past"
        self.host.kill("broker")
        shutil.copytree(self.host.spec("broker")["directory"], self._past)
        self.host.start("broker")

    def end(self) -> None:
        self.host.kill("broker")
        directory = self.host.spec("broker")["directory"]
        shutil.rmtree(directory)
        self._past.rename(directory)
        self.host.start("broker")


#: How often each is chosen, relative to the others.
WEIGHTS: Final[dict[type[HostBreaking], float]] = {
    KillBroker: 8,
    KillHost: 2,
    LoseHost: 3,
    PauseBroker: 3,
    PauseHost: 2,
    KillNameServer: 1,
    KillKeeper: 1,
    KillEtcd: 2,
    KillCoordinator: 1,
    PauseKeeper: 1,
    PauseEtcd: 2,
    PauseCoordinator: 1,
    EmptyKeeper: 1,
    Isolate: 2,
    Separate: 2,
    Mute: 1,
    Deafen: 1,
    OneWayBetween: 2,
    ClientsCutOff: 1,
    SlowNetwork: 1,
    SlowDisk: 1,
    HangingDisk: 1,
    FullDisk: 1,
    FailingDisk: 1,
    ClockJump: 1,
    CopiedDirectory: 1,
}

#: Faults that take long, and a planted bug that the checks have to find: used only by name.
ONLY_BY_NAME: Final = (SuspendHost, Forget)
