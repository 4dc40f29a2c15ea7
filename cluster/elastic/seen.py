"""What is to be known of broker groups before something is done to one of their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raymq.actors.naming import replica_name
from raymq.actors.protocol import BrokerInfo


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """One replica; `pid` is None where it does not answer, `lag_bytes` where it follows nobody."""

    group: str
    number: int
    pid: int | None
    is_master: bool = False
    lag_bytes: int | None = None

    @property
    def name(self) -> str:
        """That of its actor and of its store's folder."""
        return replica_name(self.group, self.number)


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """One broker group.

    Attributes:
        replicas: those that there should be, by their numbers from 0 on.
        in_sync: as the master says; None: there is none, or the group has one copy that is no replica.
    """

    name: str
    replicas: Mapping[int, ReplicaSeen]
    in_sync: frozenset[int] | None = None

    @property
    def master(self) -> ReplicaSeen | None:
        """The one that serves."""
        return next((each for each in self.replicas.values() if each.is_master), None)

    @property
    def trouble(self) -> str:
        """What it lacks of all that it should have; empty: nothing, and one of several may go for a while."""
        for each in self.replicas.values():
            if each.pid is None:
                return f"{each.name} does not answer"
        master = self.master
        if master is None:
            return f"{self.name} has no master"
        if self.in_sync is None:
            return ""
        for each in self.replicas.values():
            if each.number not in self.in_sync or (each is not master and each.lag_bytes is None):
                behind = "" if not each.lag_bytes else f": {each.lag_bytes >> 20} MiB behind"
                return f"{each.name} is not in sync{behind}"
        return ""


def groups_seen(actors: Iterable[str], told: Iterable[BrokerInfo]) -> dict[str, GroupSeen]:
    """All groups by name.

    Args:
        actors: the names of all brokers' actors.
        told: what those say of themselves that are in the routes.
    """
    running = {(each.name, each.replica): each for each in told if each.state == "running"}
    found: dict[str, dict[int, ReplicaSeen]] = {}
    for actor in sorted(actors):
        group, _, rest = actor.partition(".")
        number = int(rest or 0)
        info = running.get((group, number))
        found.setdefault(group, {})[number] = (
            ReplicaSeen(group, number, None)
            if info is None
            else ReplicaSeen(group, number, info.pid, info.role == "master", info.lag_bytes)
        )
    groups = {}
    for group, replicas in found.items():
        masters = [running[group, number] for number, each in replicas.items() if each.is_master]
        newest = max(masters, key=lambda each: each.epoch, default=None)  # a former one may not know it yet
        in_sync = None if newest is None or newest.in_sync is None else frozenset(newest.in_sync)
        seen = {
            number: each if newest is None or number == newest.replica else _no_master(each)
            for number, each in sorted(replicas.items())
        }
        groups[group] = GroupSeen(group, seen, in_sync)
    return groups


def _no_master(replica: ReplicaSeen) -> ReplicaSeen:
    return ReplicaSeen(replica.group, replica.number, replica.pid, is_master=False, lag_bytes=replica.lag_bytes)
