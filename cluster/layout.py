"""What is written down of a cluster's brokers: who there is, on which machine, and which change of them is under way.

It lies in the root of who starts the cluster, in `raymq-cluster.json`, and is written before anything is started. A
start says how many groups of how many replicas it wants; what was added and taken away by hand since counts besides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from raymq.actors.errors import InvalidInput, RayMQError, StoreFull
from raymq.actors.naming import broker_name, is_broker_name, replica_name
from raymq.storage.files import json_file

LAYOUT_FILE: Final = "raymq-cluster.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """Made anew for each change; never changed.

    Attributes:
        machines: the resource of the machine that a replica's directory is on, by the name of its actor; of those, too,
            that the last start did not want.
        replicas: how many each group had at the last start; 0: it is not known.
        added: replicas beyond what a start wants.
        removed: replicas that a start must not bring back.
        under_way: by group: the change that was begun there, as plain values.
    """

    machines: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 0
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    under_way: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def names(self, brokers: int, replicas: int) -> list[str]:
        """The actors that are to be there after a start that wants so many; the first ones of all groups come first.

        A group that was taken away has none, also where more replicas are wanted than it ever had.
        """
        gone = {group_of(name) for name in self.removed} - {group_of(name) for name in (*self.machines, *self.added)}
        groups = [group for group in map(broker_name, range(brokers)) if group not in gone]
        wanted = {replica_name(group, number) for group in groups for number in range(replicas)}
        return sorted((wanted | self.added) - self.removed, key=_order)

    def with_copies(self, brokers: int, replicas: int) -> Layout:
        """Where a start wants more replicas than there were: as many more of groups, too, that were added by hand."""
        if not 0 < self.replicas < replicas:
            return self
        groups = {group_of(name) for name in self.added} - {broker_name(index) for index in range(brokers)}
        more = {replica_name(group, number) for group in groups for number in range(self.replicas, replicas)}
        return dataclasses.replace(self, added=self.added | (more - self.removed))

    def replicas_of(self, group: str) -> list[str]:
        """The actors of a group that are written down, or were wanted by the last start."""
        wanted = {replica_name(group, number) for number in range(self.replicas)}
        known = {name for name in (*self.machines, *self.added) if group_of(name) == group}
        return sorted(wanted | known)

    def next_group(self, brokers: int) -> str:
        """The name of a new group: none that ever was, whose messages' ids and directories might still be met."""
        known = {group_of(name) for name in (*self.machines, *self.added, *self.removed)}
        taken = known | {broker_name(index) for index in range(brokers)}
        index = 0
        while any(_index(name) >= index for name in taken):
            index += 1
        return broker_name(index)

    def with_added(self, machines: Mapping[str, str]) -> Layout:
        """With these, on these machines, whatever a start wants."""
        return dataclasses.replace(
            self,
            machines={**self.machines, **machines},
            added=self.added | machines.keys(),
            removed=self.removed - machines.keys(),
        )

    def without(self, *names: str) -> Layout:
        """Without these, whatever a start wants."""
        gone = frozenset(names)
        machines = {name: machine for name, machine in self.machines.items() if name not in gone}
        return dataclasses.replace(self, machines=machines, added=self.added - gone, removed=self.removed | gone)

    def with_change(self, group: str, change: Mapping[str, Any] | None) -> Layout:
        """With this change of a group under way; None: with none."""
        others = {name: each for name, each in self.under_way.items() if name != group}
        return dataclasses.replace(self, under_way=others if change is None else {**others, group: dict(change)})

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        told: dict[str, Any] = {"brokers": dict(self.machines), "replicas": self.replicas}
        if self.added or self.removed or self.under_way:
            told |= {"added": sorted(self.added), "removed": sorted(self.removed), "underWay": dict(self.under_way)}
        return told

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Layout:
        """What `to_json` made, or an earlier version. ValueError and the like if it is of another form."""
        machines = {str(name): str(resource) for name, resource in raw.get("brokers", {}).items()}
        added, removed = (frozenset(map(str, raw.get(which, ()))) for which in ("added", "removed"))
        if wrong := sorted(name for name in {*machines, *added, *removed} if not is_broker_name(name)):
            raise ValueError(f"not the names of brokers: {wrong}")
        return cls(
            machines,
            int(raw.get("replicas", 0)),
            added,
            removed,
            {str(group): dict(change) for group, change in raw.get("underWay", {}).items()},
        )


def load(directory: Path) -> Layout:
    """What is written down in a root; nothing, where there is no file. StoreCorrupt: it cannot be read."""
    return json_file.load_as(directory / LAYOUT_FILE, Layout.from_json)


def save(directory: Path, layout: Layout, before: Layout) -> None:
    """Write it down, durably.

    Raises:
        InvalidInput: the root cannot be written. StoreFull: nor has it room, and something has changed.
    """
    try:
        json_file.save(directory / LAYOUT_FILE, layout.to_json(), Layout.from_json)
    except StoreFull:
        if layout != before:  # else it says so already, and brokers may be about to make room
            raise
    except (OSError, RayMQError) as error:
        raise InvalidInput("root", "a folder that can be written", f"{directory}: {error}") from error


def group_of(name: str) -> str:
    """The group of the replica whose actor has that name."""
    return name.partition(".")[0]


def number_of(name: str) -> int:
    """Which replica of its group it is, from 0 on."""
    return int(name.partition(".")[2] or 0)


def _index(group: str) -> int:
    """The reverse of `broker_name`; -1 for what is none."""
    letters, index = group.removeprefix("broker-"), 0
    if not letters.isascii() or not letters.islower() or not letters.isalpha():
        return -1
    for letter in letters:
        index = 26 * index + ord(letter) - ord("a") + 1
    return index - 1


def _order(name: str) -> tuple[int, int, str]:
    return number_of(name), _index(group_of(name)), name
