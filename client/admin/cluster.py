"""How the brokers, name servers and the scheduler do; see `Admin.cluster_info`."""

from __future__ import annotations

from collections.abc import Mapping

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import BrokerInfo
from raymq.actors.wire.commands import admin as wire_admin
from raymq.actors.wire.told import number_in
from raymq.client.connection import Connection
from raymq.client.requests import fan_out as asking
from raymq.client.results import ClusterInfo, NameServerInfo, SchedulerInfo

_STATUS_SECONDS = 2.0


async def info(mq: Connection, known_before: Mapping[str, str]) -> ClusterInfo:
    """What answers now; `known_before` are brokers (name -> address) that may have left the routes since."""
    addresses = {**known_before, **(await mq.routes.cluster()).masters}

    async def broker(item: tuple[str, str]) -> BrokerInfo:
        name, address = item
        try:
            answer = await mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS)
        except RayMQError:
            return BrokerInfo(name, 0, "master", "unreachable", 0, address, 0, "", "", 0.0)
        return wire_admin.read_status(answer)

    async def name_server(address: str) -> NameServerInfo:
        try:
            answer = await mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS)
        except RayMQError:
            return NameServerInfo(address, None)
        return NameServerInfo(address, number_in(answer, "pid"))

    brokers = await asking.gather(sorted(addresses.items()), broker)
    servers = await asking.gather(mq.name_servers, name_server)
    beats = [each for each in brokers if each.scheduler_pid is not None]
    lateness = max((each.lateness for each in beats), default=None)
    return ClusterInfo(brokers, servers, SchedulerInfo(beats[0].scheduler_pid if beats else None, lateness))
