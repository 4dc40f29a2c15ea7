"""What may be done to brokers next, each told in words."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.naming import replica_name
from raymq.actors.protocol import PERM_WRITE
from raymq.cluster.layout import Layout


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done now; `why`."""

    why: str

    def __str__(self) -> str:
        return f"waits: {self.why}"


@dataclass(frozen=True, slots=True)
class HandOver:
    """Have another replica, which is in sync, become the group's master."""

    group: str
    replica: int

    def __str__(self) -> str:
        return f"hands {self.group} over to {replica_name(self.group, self.replica)}"


@dataclass(frozen=True, slots=True)
class Restart:
    """Have a replica's process stop, and Ray start another one; by a kill, if it does not stop."""

    name: str
    by_force: bool = False

    def __str__(self) -> str:
        return f"kills {self.name}, which does not stop" if self.by_force else f"restarts {self.name}"


@dataclass(frozen=True, slots=True)
class WriteDown:
    """Write down a layout, before what it says is done; `what` is new in it."""

    layout: Layout
    what: str

    def __str__(self) -> str:
        return f"writes down: {self.what}"


@dataclass(frozen=True, slots=True)
class Make:
    """Start a replica on a machine."""

    name: str
    machine: str

    def __str__(self) -> str:
        return f"starts {self.name} on {self.machine}"


@dataclass(frozen=True, slots=True)
class End:
    """Stop a replica, and end its actor for good. Its directory stays."""

    name: str

    def __str__(self) -> str:
        return f"ends {self.name}"


@dataclass(frozen=True, slots=True)
class Forget:
    """Take a replica that is ended out of the register."""

    name: str

    def __str__(self) -> str:
        return f"takes {self.name} out of the register"


@dataclass(frozen=True, slots=True)
class Permit:
    """Let clients do this with all topics of a group, a sum of 4 (read) and 2 (write)."""

    group: str
    permission: int

    def __str__(self) -> str:
        return f"lets {self.group} be {'written again' if self.permission & PERM_WRITE else 'read only'}"


@dataclass(frozen=True, slots=True)
class ForgetGroup:
    """Have all others and the name servers know that a group is gone for good."""

    group: str

    def __str__(self) -> str:
        return f"has all others forget {self.group}"


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """Put a new group into the register."""

    group: str

    def __str__(self) -> str:
        return f"founds {self.group}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Make topics on a group, with the settings that they have elsewhere, and all consumer groups."""

    group: str
    topics: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.topics[:5]) + (f" and {len(self.topics) - 5} more" if len(self.topics) > 5 else "")
        return f"makes topics on {self.group}: {shown or 'none'}"
