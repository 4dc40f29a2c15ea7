"""The recorded layout of a cluster's brokers.

It contains the replicas, their machines, and the changes in progress. The file is `raymq-cluster.json` in the root on
the machine that starts the cluster; it is written before an actor is started. A start gives the number of groups and
replicas; replicas that were added or removed by commands since then are recorded in addition.
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
class ClusterLayout:
    """An immutable layout; each change returns a new one.

    Attributes:
        machines: the resource of the machine that has a replica's directory, by the name of the replica's actor; also
            of replicas that the last start did not request.
        replicas: the number of replicas per group at the last start; 0: unknown.
        added: replicas in addition to those that a start requests.
        removed: replicas that a start must not recreate.
        pending_changes: the change in progress of each group, as plain values.
    """

    machines: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 0
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    pending_changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def names(self, brokers: int, replicas: int) -> list[str]:
        """Return the actors of a start with so many brokers and replicas.

        The first replicas of all groups come first. A removed group has no actors, even if more replicas are requested
        than it ever had.
        """
        removed_groups = {group_name(name) for name in self.removed} - {
            group_name(name) for name in (*self.machines, *self.added)
        }
        groups = [group for group in map(broker_name, range(brokers)) if group not in removed_groups]
        expected = {replica_name(group, number) for group in groups for number in range(replicas)}
        return sorted((expected | self.added) - self.removed, key=_order)

    def with_replicas(self, brokers: int, replicas: int) -> ClusterLayout:
        """Return the layout for a start with more replicas than before.

        Groups that were added by commands get as many additional replicas.
        """
        if not 0 < self.replicas < replicas:
            return self
        groups = {group_name(name) for name in self.added} - {broker_name(index) for index in range(brokers)}
        more = {replica_name(group, number) for group in groups for number in range(self.replicas, replicas)}
        return dataclasses.replace(self, added=self.added | (more - self.removed))

    def replicas_of(self, group: str) -> list[str]:
        """Return the actors of a group that are recorded or were requested last."""
        expected = {replica_name(group, number) for number in range(self.replicas)}
        known = {name for name in (*self.machines, *self.added) if group_name(name) == group}
        return sorted(expected | known)

    def next_group(self, brokers: int) -> str:
        """Return the name of a new group.

        The name was never used, because message ids and directories of the former group may still exist.
        """
        known = {group_name(name) for name in (*self.machines, *self.added, *self.removed)}
        taken = known | {broker_name(index) for index in range(brokers)}
        index = 0
        while any(_index(name) >= index for name in taken):
            index += 1
        return broker_name(index)

    def with_added(self, machines: Mapping[str, str]) -> ClusterLayout:
        """Return the layout with these replicas on these machines, whatever a start requests."""
        return dataclasses.replace(
            self,
            machines={**self.machines, **machines},
            added=self.added | machines.keys(),
            removed=self.removed - machines.keys(),
        )

    def without(self, *names: str) -> ClusterLayout:
        """Return the layout without these replicas, whatever a start requests."""
        removed = frozenset(names)
        machines = {name: machine for name, machine in self.machines.items() if name not in removed}
        return dataclasses.replace(self, machines=machines, added=self.added - removed, removed=self.removed | removed)

    def with_change(self, group: str, change: Mapping[str, Any] | None) -> ClusterLayout:
        """Return the layout with this change of a group in progress; None: with no change."""
        others = {name: each for name, each in self.pending_changes.items() if name != group}
        return dataclasses.replace(self, pending_changes=others if change is None else {**others, group: dict(change)})

    def to_json(self) -> dict[str, Any]:
        """Return the layout as JSON values."""
        data: dict[str, Any] = {"brokers": dict(self.machines), "replicas": self.replicas}
        if self.added or self.removed or self.pending_changes:
            data |= {
                "added": sorted(self.added),
                "removed": sorted(self.removed),
                "underWay": dict(self.pending_changes),
            }
        return data

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ClusterLayout:
        """Return the layout from JSON values of `to_json`, also of an earlier version.

        Raise ValueError or a similar error if the values have another form.
        """
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


def load(directory: Path) -> ClusterLayout:
    """Return the layout recorded in a root, an empty one if there is no file.

    Raise StoreCorrupt if the file cannot be read.
    """
    return json_file.load_as(directory / LAYOUT_FILE, ClusterLayout.from_json)


def save(directory: Path, layout: ClusterLayout, before: ClusterLayout) -> None:
    """Write the layout durably.

    Raises:
        InvalidInput: the root cannot be written.
        StoreFull: the disk is full, and the layout has changed.
    """
    try:
        json_file.save(directory / LAYOUT_FILE, layout.to_json(), ClusterLayout.from_json)
    except StoreFull:
        if layout != before:  # An unchanged layout is on disk already, and the brokers may be about to free space.
            raise
    except (OSError, RayMQError) as error:
        raise InvalidInput("root", "a folder that can be written", f"{directory}: {error}") from error


def group_name(name: str) -> str:
    """Return the group of the replica whose actor has that name."""
    return name.partition(".")[0]


def replica_number(name: str) -> int:
    """Return the number of the replica in its group, from 0 on."""
    return int(name.partition(".")[2] or 0)


def _index(group: str) -> int:
    """Return the index of a group name, the inverse of `broker_name`; -1 if invalid."""
    letters, index = group.removeprefix("broker-"), 0
    if not letters.isascii() or not letters.islower() or not letters.isalpha():
        return -1
    for letter in letters:
        index = 26 * index + ord(letter) - ord("a") + 1
    return index - 1


def _order(name: str) -> tuple[int, int, str]:
    return replica_number(name), _index(group_name(name)), name
