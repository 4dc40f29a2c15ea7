"""Place the replicas of all broker groups on machines.

A replica belongs to the machine with its directory; machines for new replicas are chosen in turn. The placement is
recorded in the root on the machine that starts the cluster (`raymq.cluster.cluster_layout`) before an actor is started.
The files on the machines take precedence over the record, because a machine may have been renamed, or its disk moved to
another machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.naming import broker_name, is_broker_name
from raymq.cluster import cluster_layout as noted
from raymq.cluster.cluster_layout import LAYOUT_FILE, ClusterLayout, group_name, replica_number
from raymq.cluster.host_files import locate_actor

__all__ = ["LAYOUT_FILE", "least_loaded_machine", "name_server_ports", "place_replicas"]


def name_server_ports(addresses: Sequence[str], port: int) -> list[int]:
    """Return the port of each name server: `port` for the first one at each address.

    Further name servers at an address get 0, which chooses a free port.
    """
    return [0 if address in addresses[:index] else port for index, address in enumerate(addresses)]


def place_replicas(
    directory: Path,
    brokers: int,
    replicas: int,
    resources: Sequence[str],
    seen: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """Return the resource of each replica's machine, by actor name.

    The first replicas of all groups come first. The replicas of a group are distributed over as many machines as
    possible, and so are the first replicas of the groups. Replicas that were added by commands are included, removed
    ones are not.

    Args:
        seen: the actors with files on each machine, for the machines that were queried (`host_files.list_host_files`).

    Raises:
        InvalidInput: the directory cannot be used, or groups had more replicas before.
        BrokerUnavailable: a replica's machine is missing or unknown.
    """
    seen = seen or {}
    file = directory / LAYOUT_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("root", "a folder, or a path where one can be created", f"{directory}: {error}") from error
    before = noted.load(directory)
    layout = before.with_replicas(brokers, replicas)
    found = sorted({name for names in seen.values() for name in names if is_broker_name(name)})
    _check_replicas(layout, found, brokers, replicas)
    is_lost = bool(found) and not layout.machines  # The record is lost, so an absent machine would not be noticed.
    placed: dict[str, str] = {}
    turn = {broker_name(index): index for index in range(brokers)}

    def in_turn(name: str) -> str:
        group, now = group_name(name), dataclasses.replace(layout, machines={**layout.machines, **placed})
        if group in turn:
            its_own = resources[(turn[group] + replica_number(name)) % len(resources)]
            if its_own not in {now.machines[each] for each in now.machines if group_name(each) == group}:
                return its_own
        # The other replicas of the group may be elsewhere than in turn, because they were added by commands, or placed
        # by a start on another machine, which then was first in turn.
        return least_loaded_machine(now, group, resources)

    for name in layout.names(brokers, replicas):
        at = locate_actor(name, layout.machines.get(name), seen)
        if at is None and is_lost:
            raise BrokerUnavailable(
                name,
                f"{file} is missing, and no machine has the files of this replica, only those of {', '.join(found)}",
                remedy="start Ray on the machine that has them, or put the file back",
            )
        placed[name] = at or in_turn(name)
        if placed[name] not in resources:
            if len(resources) > 1 or len(set(layout.machines.values())) > 1:
                raise BrokerUnavailable(
                    name,
                    f"its machine ({placed[name]}) is not part of this Ray cluster, which has " + ", ".join(resources),
                    remedy=f"start Ray there; if it lost its disk and has another name, write that into {file}",
                )
            placed[name] = resources[0]  # The only machine has a new name.
    after = dataclasses.replace(layout, machines={**layout.machines, **placed}, replicas=replicas)
    noted.save(directory, after, before)
    return placed


def least_loaded_machine(layout: ClusterLayout, group: str, resources: Sequence[str]) -> str:
    """Return the machine for a further replica of a group.

    It is the one with the fewest replicas of that group, then with the fewest of all groups.
    """

    def load(resource: str) -> tuple[int, int]:
        there = [name for name, machine in layout.machines.items() if machine == resource]
        return sum(group_name(name) == group for name in there), len(there)

    return min(resources, key=load)


def _check_replicas(layout: ClusterLayout, found: Sequence[str], brokers: int, replicas: int) -> None:
    """Raise InvalidInput if a start requests fewer replicas than the groups had.

    A single remaining replica may lack acknowledged messages, which would go unnoticed.
    """
    groups = [broker_name(index) for index in range(brokers)]
    known = [layout.replicas] if layout.replicas else _numbers([*layout.machines, *found], groups)
    before = max((replicas, *known))
    if before > replicas:
        raise InvalidInput("replicas", f"{before}, as the groups in this root have", replicas)


def _numbers(known: Sequence[str], groups: Sequence[str]) -> list[int]:
    """Return the least number of replicas of each known replica's group.

    It is used if no start has recorded the number.
    """
    return [replica_number(name) + 1 for name in known if group_name(name) in groups]
