"""The observed state of broker groups, which plans of changes are based on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raymq.actors.naming import replica_name
from raymq.actors.protocol import BrokerInfo


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """The observed state of one replica.

    `pid` is None if it does not answer, `lag_bytes` if it does not replicate from a master.
    """

    group: str
    number: int
    pid: int | None
    is_master: bool = False
    lag_bytes: int | None = None

    @property
    def name(self) -> str:
        """Return the name of its actor and of its store's folder."""
        return replica_name(self.group, self.number)


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """The observed state of one broker group.

    Attributes:
        replicas: the replicas that should exist, by their numbers from 0 on.
        in_sync: the in-sync set that the master reports; None: there is no master, or the group is not replicated.
    """

    name: str
    replicas: Mapping[int, ObservedReplica]
    in_sync: frozenset[int] | None = None

    @property
    def master(self) -> ObservedReplica | None:
        """Return the replica that serves as master, None if there is none."""
        return next((each for each in self.replicas.values() if each.is_master), None)

    @property
    def trouble(self) -> str:
        """Describe what the group lacks to be complete and in sync; empty if nothing.

        If it is empty, one of several replicas may be stopped for a while.
        """
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


def observe_groups(actors: Iterable[str], statuses: Iterable[BrokerInfo]) -> dict[str, ObservedGroup]:
    """Return the observed state of all groups by name.

    Args:
        actors: the names of all brokers' actors.
        statuses: the reports of the brokers that are in the routes.
    """
    running = {(each.name, each.replica): each for each in statuses if each.state == "running"}
    found: dict[str, dict[int, ObservedReplica]] = {}
    for actor in sorted(actors):
        group, _, rest = actor.partition(".")
        number = int(rest or 0)
        info = running.get((group, number))
        found.setdefault(group, {})[number] = (
            ObservedReplica(group, number, None)
            if info is None
            else ObservedReplica(group, number, info.pid, info.role == "master", info.lag_bytes)
        )
    groups = {}
    for group, replicas in found.items():
        masters = [running[group, number] for number, each in replicas.items() if each.is_master]
        # A former master may not have received the new epoch yet.
        newest = max(masters, key=lambda each: each.epoch, default=None)
        in_sync = None if newest is None or newest.in_sync is None else frozenset(newest.in_sync)
        seen = {
            number: each if newest is None or number == newest.replica else _no_master(each)
            for number, each in sorted(replicas.items())
        }
        groups[group] = ObservedGroup(group, seen, in_sync)
    return groups


def _no_master(replica: ObservedReplica) -> ObservedReplica:
    return ObservedReplica(replica.group, replica.number, replica.pid, is_master=False, lag_bytes=replica.lag_bytes)
