"""Query the state of the brokers, name servers, keepers and scheduler; see `Admin.cluster_info`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MASTER_ID, BrokerInfo
from raymq.actors.wire.commands import admin_commands as wire_admin
from raymq.actors.wire.commands import keeper_commands as wire_keeper
from raymq.actors.wire.response_validation import read_number_field
from raymq.client.admin.broker_removal import registered_once
from raymq.client.connection import Connection
from raymq.client.requests import fan_out as asking
from raymq.client.results import ClusterInfo, KeeperInfo, NameServerInfo, SchedulerInfo

_STATUS_SECONDS = 2.0
#: The states in which a keeper's vote counts.
_VOICED = ("running", "quiet")


async def info(mq: Connection, known_before: Mapping[tuple[str, int], str]) -> ClusterInfo:
    """Return the cluster's current state.

    `known_before` are the addresses of the brokers of the previous call, by name and replica. Brokers that do not
    answer now, or that have left the routes, are reported as "unreachable" until they are forgotten or removed.
    """
    answered = await mq.routes.cluster()
    known_names = await registered_once(mq)
    view = answered.brokers
    registered = {address: (name, each) for name, (_, replicas) in view.items() for each, address in replicas.items()}
    before = {address: (name, 0) for name, address in answered.left.items()}
    before |= {address: replica for replica, address in known_before.items() if address}

    async def broker(address: str) -> BrokerInfo:
        try:
            found = wire_admin.read_status(await mq.pool.request(address, wire_admin.status_command(), _STATUS_SECONDS))
        except RayMQError:
            return _unreachable(address, before.get(address), registered.get(address), view)
        is_ours = address in registered or found.name == before[address][0]  # else another cluster's took the address
        return found if is_ours else _unreachable(address, before[address], None, view)

    answers = await asking.gather(sorted({**before, **registered}), broker)
    expected = None if known_names is None else {*known_names, *view, *answered.left}
    brokers = sorted(with_lost(answers, expected), key=lambda each: (each.name, each.replica, each.address))

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


def with_lost(answers: Sequence[BrokerInfo], names: Collection[str] | None) -> list[BrokerInfo]:
    """Return the entries without outdated ones, and with one for each lost replica.

    Args:
        answers: the entries of all known addresses.
        names: the names of the brokers that exist; None if unknown.
    """
    there = [each for each in answers if each.state != "unreachable"]
    newest = {each.name: each for each in sorted(there, key=lambda each: each.epoch) if each.replicas is not None}
    found = {(each.name, each.replica): each for each in answers if each.state == "unreachable"}
    for name, number in list(found):
        member = newest.get(name)
        is_removed = member is not None and number not in (member.replicas or ())
        if is_removed or (names is not None and name not in names):
            del found[name, number]
    for name, member in newest.items():
        for number in member.replicas or ():
            found.setdefault((name, number), _long_away(name, number))
    for name in set(names or ()) - {each.name for each in answers}:
        found.setdefault((name, MASTER_ID), _long_away(name))
    for each in there:
        found.pop((each.name, each.replica), None)
    return [*there, *found.values()]


def _long_away(name: str, replica: int = 0) -> BrokerInfo:
    """Return the entry of a replica whose address is not known."""
    return BrokerInfo(name, replica, "replica" if replica else "master", "unreachable", 0, "", 0, "", "", 0.0)


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
