"""Which of Ray's nodes are the cluster's machines, and by which resource an actor is bound to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.naming import SPARK_NODE_PREFIX

#: Where RayMQ's own sockets listen on a Ray that is on one machine alone.
_OWN_LOOPBACK: Final = "127.0.0.1"


def machines_of(nodes: Iterable[Mapping[str, Any]], own_id: str) -> list[tuple[str, str]]:
    """The living nodes: (resource that binds an actor to the machine, the address that its sockets listen on).

    The node of `own_id` comes first, where name server 0 is put, the others are sorted. A machine says which it is by a
    resource `broker_<name>` (`raymq cluster host-resources`); one that does not is told by Ray's own `node:<address>`,
    which survives a restart of its raylet as long as its address does. Where the whole of Ray is on the loopback of one
    machine, RayMQ's sockets listen where every program of it looks first. A node that is only there for a Spark session
    is no machine: it goes with the session, and whatever is bound to it could never start again.

    Args:
        nodes: as `ray.nodes()` tells.
    """
    there = [each for each in nodes if each["Alive"] and not _is_of_spark(each["Resources"])]
    found = set()
    for node in there:
        address = node["NodeManagerAddress"]
        named = sorted(name for name in node["Resources"] if name.startswith("broker_"))
        found.add((named[0] if named else f"node:{address}", address))
    own = {each["NodeManagerAddress"] for each in there if each["NodeID"] == own_id}
    listening = sorted(found, key=lambda each: (each[1] not in own, each))
    if all(address.startswith("127.") for _, address in listening):
        return [(resource, _OWN_LOOPBACK) for resource, _ in listening]
    return listening


def by_resource(hosts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The address of each machine.

    Raises:
        BrokerUnavailable: two say that they are the same one: Ray would start a broker on either, and each has files of
            its own.
    """
    found: dict[str, str] = {}
    for resource, address in hosts:
        if found.setdefault(resource, address) != address:
            raise BrokerUnavailable(
                resource,
                f"two machines of this Ray cluster say that they are this one: {found[resource]} and {address}",
                remedy="if one has just got another address, wait until Ray has noticed that it is gone; if a disk was "
                "copied, remove raymq-host.json from the copy and start Ray there again",
            )
    return found


def _is_of_spark(resources: Iterable[str]) -> bool:
    return any(name.startswith(SPARK_NODE_PREFIX) for name in resources)
