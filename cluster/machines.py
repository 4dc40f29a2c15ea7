"""Choose the Ray nodes that are the cluster's machines, and the resource of each.

An actor is bound to a machine by the machine's resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.naming import SPARK_NODE_PREFIX

#: The address of RayMQ's sockets if all of Ray is on the loopback of one machine.
_OWN_LOOPBACK: Final = "127.0.0.1"


def list_machines(nodes: Iterable[Mapping[str, Any]], own_id: str) -> list[tuple[str, str]]:
    """Return the live nodes as (resource, address).

    The resource binds an actor to the machine; its sockets listen on the address. The node of `own_id` comes first,
    because name server 0 is placed there; the others are sorted. A machine is identified by a resource `broker_<name>`
    (`raymq cluster host-resources`), else by Ray's own `node:<address>`, which survives a restart of its raylet as long
    as the address stays the same. If all of Ray is on the loopback of one machine, RayMQ's sockets listen on 127.0.0.1,
    where programs look first. A node that was added for a Spark session does not count: it ends with the session, and
    an actor bound to it could never restart.

    Args:
        nodes: as `ray.nodes()` returns them.
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


def addresses_by_resource(hosts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the address of each machine by its resource.

    Raises:
        BrokerUnavailable: two machines have the same resource. Ray would start a broker on either, and each has files
            of its own.
    """
    found: dict[str, str] = {}
    for resource, address in hosts:
        if found.setdefault(resource, address) != address:
            raise BrokerUnavailable(
                resource,
                f"two machines of this Ray cluster have this identity: {found[resource]} and {address}",
                remedy="if a machine just got another address, wait until Ray has removed the old one; if a disk was "
                "copied, remove raymq-host.json from the copy and start Ray there again",
            )
    return found


def _is_of_spark(resources: Iterable[str]) -> bool:
    return any(name.startswith(SPARK_NODE_PREFIX) for name in resources)
