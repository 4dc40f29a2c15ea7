"""What can happen to Ray under a cluster of RayMQ, and how an operator, or Ray's autoscaler, heals it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar, Final

from tests.chaos.failover.breaking import Breaking
from tests.rayup.ray_hosts import RayHosts

RAYLET: Final = "raylet"
GCS: Final = "gcs_server"


@dataclass
class _OfWorker(Breaking[RayHosts]):
    """One of a host that is not the head; the autoscaler starts Ray there again."""

    @property
    def host(self) -> str:
        if not self.target:
            workers = [name for name in self.cluster.hosts.names if name != self.cluster.head]
            self.target = self.chance.choice([name for name in workers if name not in self.spared] or workers)
            self.spared.add(self.target)
        return self.target

    def end(self) -> None:
        pass


class KillRaylet(_OfWorker):
    name = "SIGKILL of a raylet"

    def begin(self) -> None:
        self.cluster.hosts.signal(self.host, RAYLET, signal.SIGKILL)


class PauseRaylet(_OfWorker):
    """For so long that Ray may have given the node up: then the raylet ends when it goes on."""

    name = "SIGSTOP of a raylet"
    holds = (2.0, 20.0)

    def begin(self) -> None:
        self.cluster.hosts.signal(self.host, RAYLET, signal.SIGSTOP)

    def end(self) -> None:
        self.cluster.hosts.signal(self.host, RAYLET, signal.SIGCONT)


class LoseWorker(_OfWorker):
    name = "a worker host loses its power"
    holds = (2.0, 15.0)

    def begin(self) -> None:
        self.cluster.hosts.kill(self.host)

    def end(self) -> None:
        self.cluster.hosts.start(self.host)


class KillBrokerActor(_OfWorker):
    """Ray starts the actor again."""

    name = "SIGKILL of a broker"

    def begin(self) -> None:
        self.cluster.hosts.signal(self.host, "ray::Broker", signal.SIGKILL)


@dataclass
class _OfHead(Breaking[RayHosts]):
    """One of the head; an operator calls `ray up` again."""

    process: ClassVar[str] = GCS
    holds = (2.0, 15.0)

    def begin(self) -> None:
        self.target = self.cluster.head
        self.spared.add(self.target)
        self.cluster.hosts.signal(self.target, self.process, signal.SIGKILL)

    def end(self) -> None:
        if not self.cluster.hosts.is_on(self.target):
            self.cluster.hosts.start(self.target)
        self.cluster.up()


class KillGcs(_OfHead):
    name = "SIGKILL of the GCS"


class KillHeadRaylet(_OfHead):
    name, process = "SIGKILL of the head's raylet", RAYLET


class LoseHead(_OfHead):
    name = "the head loses its power"

    def begin(self) -> None:
        self.target = self.cluster.head
        self.spared.add(self.target)
        self.cluster.hosts.kill(self.target)


WEIGHTS: Final[dict[type[Breaking[RayHosts]], float]] = {
    KillRaylet: 4,
    PauseRaylet: 2,
    LoseWorker: 2,
    KillBrokerActor: 2,
    KillGcs: 2,
    KillHeadRaylet: 1,
    LoseHead: 2,
}
