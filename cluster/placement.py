"""Which machine each replica of each broker group belongs to: where its directory is, a new one in turn.

It is written down in the root of who starts the cluster (`raymq.cluster.layout`) before anything is started. What the
machines themselves have counts more: one that was renamed, or whose disk was put into another one, is found so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.naming import broker_name, is_broker_name
from raymq.cluster import layout as noted
from raymq.cluster.host_files import located
from raymq.cluster.layout import LAYOUT_FILE, Layout, group_of, number_of

__all__ = ["LAYOUT_FILE", "name_server_ports", "place", "roomiest"]


def name_server_ports(addresses: Sequence[str], port: int) -> list[int]:
    """The port of each name server, at these addresses: `port` for the first one at each of them."""
    return [0 if address in addresses[:index] else port for index, address in enumerate(addresses)]


def place(
    directory: Path,
    brokers: int,
    replicas: int,
    resources: Sequence[str],
    seen: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """The resource of each replica's machine, by its actor name; the first replicas of all groups come first.

    The replicas of a group are on as many machines as there are; the first ones of the groups likewise. Those that were
    added by hand are among them, those that were taken away are not.

    Args:
        seen: whose files each machine has, as far as machines were asked (`host_files.ask`).

    Raises:
        InvalidInput: the directory cannot be used, or groups had more replicas before.
        BrokerUnavailable: a replica's machine is not there, or it is not known which one it is.
    """
    seen = seen or {}
    file = directory / LAYOUT_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("root", "a folder, or a place where one can be made", f"{directory}: {error}") from error
    before = noted.load(directory)
    layout = before.with_copies(brokers, replicas)
    found = sorted({name for names in seen.values() for name in names if is_broker_name(name)})
    _check_replicas(layout, found, brokers, replicas)
    is_lost = bool(found) and not layout.machines  # what was written down; a machine that is away would go unnoticed
    placed: dict[str, str] = {}
    turn = {broker_name(index): index for index in range(brokers)}

    def in_turn(name: str) -> str:
        group, now = group_of(name), dataclasses.replace(layout, machines={**layout.machines, **placed})
        if group in turn:
            its_own = resources[(turn[group] + number_of(name)) % len(resources)]
            if its_own not in {now.machines[each] for each in now.machines if group_of(each) == group}:
                return its_own
        # Its group's others need not be where they would be now: they were added by hand, or a start on another machine
        # has placed them, which has come first there.
        return roomiest(now, group, resources)

    for name in layout.names(brokers, replicas):
        at = located(name, layout.machines.get(name), seen)
        if at is None and is_lost:
            raise BrokerUnavailable(
                name,
                f"{file} is gone, and none of the machines has the files of this one, but of {', '.join(found)}",
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
            placed[name] = resources[0]  # the one machine that there was and is has another name now
    after = dataclasses.replace(layout, machines={**layout.machines, **placed}, replicas=replicas)
    noted.save(directory, after, before)
    return placed


def roomiest(layout: Layout, group: str, resources: Sequence[str]) -> str:
    """The machine for one more replica of a group: with the fewest of that group, then with the fewest of all."""

    def load(resource: str) -> tuple[int, int]:
        there = [name for name, machine in layout.machines.items() if machine == resource]
        return sum(group_of(name) == group for name in there), len(there)

    return min(resources, key=load)


def _check_replicas(layout: Layout, found: Sequence[str], brokers: int, replicas: int) -> None:
    """One copy alone may lack what was acknowledged, and nobody would notice."""
    groups = [broker_name(index) for index in range(brokers)]
    known = [layout.replicas] if layout.replicas else _numbers([*layout.machines, *found], groups)
    before = max((replicas, *known))
    if before > replicas:
        raise InvalidInput("replicas", f"{before}, as the groups in this root have", replicas)


def _numbers(known: Sequence[str], groups: Sequence[str]) -> list[int]:
    """How many replicas each known one says that its group has at least, where no start has written it down."""
    return [number_of(name) + 1 for name in known if group_of(name) in groups]
