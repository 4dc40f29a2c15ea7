"""Query the state of the brokers, name servers, keepers and scheduler; see `Admin.cluster_info`."""

from __future__ import annotations

from collections.abc import Mapping

from raymq.actors.errors import MessageNotFound, RayMQError
from raymq.actors.protocol import MASTER_ID, BrokerInfo
from raymq.actors.wire.commands import admin_commands as wire_admin
from raymq.actors.wire.commands import keeper_commands as wire_keeper
from raymq.actors.wire.commands.coordinator_directory_commands import known_brokers_command, read_known_brokers
from raymq.actors.wire.response_validation import read_number_field
from raymq.client.connection import Connection
from raymq.client.requests import fan_out as asking
from raymq.client.results import ClusterInfo, KeeperInfo, NameServerInfo, SchedulerInfo

_STATUS_SECONDS = 2.0
#: The states in which a keeper's vote counts.
_VOICED = ("running", "quiet")


async def info(mq: Connection, known_before: Mapping[tuple[str, int], str]) -> ClusterInfo:
    """Return the cluster's current state.

    `known_before` are the addresses of the brokers of the previous call, by name and replica. Brokers that do not
    answer now, or that have left the routes, are reported as "unreachable" until they are forgotten.
    """
    answered = await mq.routes.cluster()
    registered_once = await _registered_once(mq)
    view = answered.brokers
    registered = {address: (name, each) for name, (_, replicas) in view.items() for each, address in replicas.items()}
    before = {address: (name, 0) for name, address in answered.left.items()}
    before |= {address: replica for replica, address in known_before.items() if address}

    async def broker(address: str) -> BrokerInfo:
        try:
            return wire_admin.read_status(await mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS))
        except RayMQError:
            return _unreachable(address, before.get(address), registered.get(address), view)

    answers = await asking.gather(sorted({**before, **registered}), broker)
    if registered_once is not None:
        expected = {*registered_once, *view, *answered.left}
        answers = [each for each in answers if each.state != "unreachable" or each.name in expected]
        answers += [_long_away(name) for name in registered_once - {each.name for each in answers}]
    brokers = sorted(answers, key=lambda each: (each.name, each.replica, each.address))

    async def name_server(address: str) -> NameServerInfo:
        try:
            answer = await mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS)
        except RayMQError:
            return NameServerInfo(address, None)
        return NameServerInfo(address, read_number_field(answer, "pid"))

    servers = await asking.gather(mq.name_servers, name_server)
    beats = [each for each in brokers if each.scheduler_pid is not None]
    lateness = max((each.lateness for each in beats), default=None)
    scheduler = SchedulerInfo(beats[0].scheduler_pid if beats else None, lateness)
    return ClusterInfo(brokers, servers, scheduler, await _keepers(mq))


def _unreachable(
    address: str,
    before: tuple[str, int] | None,
    registered: tuple[str, int] | None,
    view: Mapping[str, tuple[str, Mapping[int, str]]],
) -> BrokerInfo:
    """Return the entry of a broker that does not answer.

    Its name and replica are those that are registered for its address, or else those of the previous call.
    """
    name, number = registered or before or (address, MASTER_ID)
    replica = before[1] if before is not None else max(number - 1, 0)
    has_successor = MASTER_ID in view.get(name, ("", {}))[1] and (registered is None or registered[1] != MASTER_ID)
    role = "replica" if has_successor or (registered is not None and number != MASTER_ID) else "master"
    return BrokerInfo(name, replica, role, "unreachable", 0, address, 0, "", "", 0.0)


def _long_away(name: str) -> BrokerInfo:
    """Return the entry of a broker whose address is no longer known."""
    return BrokerInfo(name, 0, "master", "unreachable", 0, "", 0, "", "", 0.0)


async def _registered_once(mq: Connection) -> set[str] | None:
    """Return the names of all registered and not forgotten brokers, None if unknown."""
    try:
        return set(read_known_brokers(await mq.routes.ask(known_brokers_command())))
    except MessageNotFound:  # a name server of RocketMQ, or a cluster's first seconds
        return None


async def _keepers(mq: Connection) -> list[KeeperInfo]:
    async def known_to(address: str) -> dict[int, str]:
        try:
            answer = await mq.pool.request(address, wire_keeper.keepers_command(), _STATUS_SECONDS)
            return wire_keeper.read_keepers(answer)
        except RayMQError:  # the name server has no keepers, or does not answer
            return {}

    async def status(address: str) -> wire_keeper.KeeperStatus | None:
        try:
            answer = await mq.pool.request(address, wire_keeper.keeper_status_command(), _STATUS_SECONDS)
            return wire_keeper.read_keeper_status(answer)
        except RayMQError:
            return None

    addresses: dict[int, str] = {}
    for known in await asking.gather(mq.name_servers, known_to):
        addresses |= known
    addresses = dict(sorted(addresses.items()))
    statuses = dict(zip(addresses, await asking.gather(addresses.values(), status), strict=True))
    return keepers_of(addresses, statuses)


def keepers_of(
    addresses: Mapping[int, str], statuses: Mapping[int, wire_keeper.KeeperStatus | None]
) -> list[KeeperInfo]:
    """Return the entry of each keeper, from the statuses of the keepers that answered.

    The newest set of members among these statuses determines which keepers are voters.
    """
    newest = max(
        (each for each in statuses.values() if each is not None), key=lambda each: each.set_number, default=None
    )
    members = newest.members if newest is not None and newest.set_number else None
    found = []
    for number, address in addresses.items():
        status = statuses.get(number)
        if status is None:
            voter = None if members is None else number in members
            found.append(KeeperInfo(number, address, None, voter, "unreachable"))
        else:
            voter = members is not None and members.get(status.number) == status.incarnation
            found.append(KeeperInfo(number, address, status.pid, voter and status.state in _VOICED, status.state))
    return found
