"""The steps of changes of brokers, each with a description in words."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.naming import replica_name
from raymq.actors.protocol import PERM_WRITE
from raymq.cluster.cluster_layout import ClusterLayout


@dataclass(frozen=True, slots=True)
class WaitStep:
    """No step is possible now, for the reason `why`."""

    why: str

    def __str__(self) -> str:
        return f"waits: {self.why}"


@dataclass(frozen=True, slots=True)
class TransferMaster:
    """Make another replica, which is in sync, the group's master."""

    group: str
    replica: int

    def __str__(self) -> str:
        return f"hands {self.group} over to {replica_name(self.group, self.replica)}"


@dataclass(frozen=True, slots=True)
class RestartReplica:
    """Stop a replica's process, which Ray then restarts.

    With `by_force` the process is killed, because it did not stop.
    """

    name: str
    by_force: bool = False

    def __str__(self) -> str:
        return f"kills {self.name}, which does not stop" if self.by_force else f"restarts {self.name}"


@dataclass(frozen=True, slots=True)
class SaveLayout:
    """Record a layout before it is put into effect; `what` describes the change."""

    layout: ClusterLayout
    what: str

    def __str__(self) -> str:
        return f"saves: {self.what}"


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start a replica on a machine."""

    name: str
    machine: str

    def __str__(self) -> str:
        return f"starts {self.name} on {self.machine}"


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop a replica, and end its actor permanently. Its directory stays."""

    name: str

    def __str__(self) -> str:
        return f"ends {self.name}"


@dataclass(frozen=True, slots=True)
class DeregisterReplica:
    """Remove a stopped replica from the register."""

    name: str

    def __str__(self) -> str:
        return f"takes {self.name} out of the register"


@dataclass(frozen=True, slots=True)
class SetPermission:
    """Set the permission of all topics of a group.

    It is a sum of 4 (read) and 2 (write).
    """

    group: str
    permission: int

    def __str__(self) -> str:
        return f"makes {self.group} {'writable again' if self.permission & PERM_WRITE else 'read only'}"


@dataclass(frozen=True, slots=True)
class DeregisterGroup:
    """Make all other groups and the name servers forget a removed group."""

    group: str

    def __str__(self) -> str:
        return f"removes {self.group} from all records"


@dataclass(frozen=True, slots=True)
class RegisterGroup:
    """Add a new group to the register."""

    group: str

    def __str__(self) -> str:
        return f"registers {self.group}"


@dataclass(frozen=True, slots=True)
class CopyMetadata:
    """Create topics on a group, with their settings on other groups, and all consumer groups."""

    group: str
    topics: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.topics[:5]) + (f" and {len(self.topics) - 5} more" if len(self.topics) > 5 else "")
        return f"creates topics on {self.group}: {shown or 'none'}"
