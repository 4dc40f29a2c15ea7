"""Decide whether a cluster is alive and ready; see `Admin.health`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import ClusterView
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands import route_answers
from raymq.actors.wire.frame import Command
from raymq.client import arguments
from raymq.client.admin import cluster_info
from raymq.client.connection import Connection
from raymq.client.requests import fan_out
from raymq.client.results import ClusterInfo

_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check of a cluster, whether it is in order, and what was found."""

    check: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Whether a cluster is alive or ready.

    `ok` is True if all checks are in order.
    """

    ok: bool
    checks: list[HealthCheck]


async def health(mq: Connection, *, ready: bool, brokers: int | None) -> ClusterHealth:
    """Return the health of the cluster; see `Admin.health`."""
    arguments.flag("ready", ready)
    if brokers is not None:
        arguments.whole("brokers", brokers, 1)
    info = await cluster_info.info(mq, {})
    if not ready:
        return _health(liveness(info))
    views = dict(zip(mq.name_servers, await fan_out.gather(mq.name_servers, lambda each: _view(mq, each)), strict=True))
    return _health(readiness(info, views, brokers))


def _health(checks: list[HealthCheck]) -> ClusterHealth:
    return ClusterHealth(all(each.ok for each in checks), checks)


async def _view(mq: Connection, name_server: str) -> ClusterView | None:
    """Return the brokers that one name server knows; None if it does not answer."""
    try:
        answer = await mq.pool.request(name_server, Command(RequestCode.GET_BROKER_CLUSTER_INFO), _SECONDS)
        return route_answers.read_view(answer.body)
    except RayMQError:
        return None


def liveness(info: ClusterInfo) -> list[HealthCheck]:
    """Return a check of each process that is known: whether it answers."""
    checks = [
        HealthCheck(f"broker {each.name} replica {each.replica}", each.state != "unreachable", each.state)
        for each in info.brokers
    ]
    checks += [
        HealthCheck(f"name server {each.address}", each.pid is not None, "running" if each.pid else "unreachable")
        for each in info.name_servers
    ]
    checks += [HealthCheck(f"keeper {each.id}", each.pid is not None, each.state) for each in info.keepers]
    return checks or [HealthCheck("processes", ok=False, found="none is known")]


def readiness(
    info: ClusterInfo, views: Mapping[str, ClusterView | None], expected: int | None = None
) -> list[HealthCheck]:
    """Return the checks of what clients need.

    That is a serving master of each group, in the routes of the name servers.

    Args:
        views: the brokers that each name server knows; None for one that does not answer.
        expected: how many broker groups there have to be; None: those that are known.
    """
    answered = {address: view for address, view in views.items() if view is not None}
    there = {each.name for each in info.brokers if each.state != "unreachable"}
    registered = there.union(*(view.brokers for view in answered.values()))
    groups = sorted(registered | {each.name for each in info.brokers})
    serving = {each.name for each in info.brokers if each.role == "master" and each.state == "running"}
    checks = [
        HealthCheck(f"broker group {name}", name in serving, f"{'a' if name in serving else 'no'} master serves")
        for name in groups
    ]
    if expected is not None or not groups:
        least = expected or 1
        found = f"{len(registered)} of {least} are registered"
        checks.append(HealthCheck("broker groups", len(registered) >= least, found))
    checks += [
        HealthCheck(f"routes of name server {address}", not lacking, _lacking(lacking))
        for address, lacking in ((address, sorted(serving - view.masters.keys())) for address, view in answered.items())
    ]
    if not answered:
        checks.append(HealthCheck("name servers", ok=False, found="none answers"))
    return checks


def _lacking(names: Sequence[str]) -> str:
    return f"{', '.join(names)} missing" if names else "complete"
