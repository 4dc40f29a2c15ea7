"""The events of a run as plain values, and the file in which they survive a process.

Times are seconds of the machine's monotonic clock, which all processes of a run share; wall clock times are
named so. A message's number is its body, and each message has its own.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

#: How a call ended: done; certainly not done; unknown. A message stored with less safety than requested
#: (FLUSH_SLAVE_TIMEOUT and the like) is unknown.
OK: Final = "ok"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"
#: The end of a lost host's target text if its disk stayed, because it had the only certain copy.
STAYS: Final = ", whose disk has the only copy and stays"


class Place(NamedTuple):
    """The position of a message."""

    topic: str
    broker: str
    queue: int
    offset: int

    @property
    def line(self) -> tuple[str, str, int]:
        """Return its queue."""
        return self.topic, self.broker, self.queue


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of one call of a producer.

    Attributes:
        key: messages of one key are sent in order, each after the answer to the one before; "" has no order.
        due: the wall time before which it must not be delivered; 0: no delay.
        once: it is sent by an idempotent producer.
        place: its acknowledged position; None without one, or if it is delayed.
        why: the call's error, if the outcome is not "ok".
    """

    number: int
    topic: str
    began: float
    ended: float
    outcome: str
    key: str = ""
    due: float = 0.0
    once: bool = False
    place: Place | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A delivery of a message to a consumer.

    Attributes:
        how: "pull", "push" or "pop".
        began: when the call that returned it began; for push, when the listener was called.
        wall: the wall time of its delivery.
        until: for pop, the earliest end of its invisible time.
    """

    number: int
    place: Place
    group: str
    how: str
    began: float
    ended: float
    wall: float = 0.0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledgement of a popped message."""

    number: int
    place: Place
    group: str
    began: float
    ended: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A write (`writes`) or read of a group's offset; -1: the group has none."""

    group: str
    topic: str
    broker: str
    queue: int
    offset: int
    began: float
    ended: float
    outcome: str
    writes: bool

    @property
    def line(self) -> tuple[str, str, str, int]:
        """Return the group and the queue."""
        return self.group, self.topic, self.broker, self.queue


@dataclass(frozen=True, slots=True)
class SentBack:
    """A reader's position was refused as out of range."""

    group: str
    topic: str
    broker: str
    queue: int
    offset: int
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Reigned:
    """A state of a group's register."""

    at: float
    group: str
    epoch: int
    master: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the cluster, from its beginning to its end."""

    name: str
    target: str
    began: float
    healed: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in its queue at the end."""

    number: int
    place: Place
    stored: float = 0.0


Event = Sent | Seen | Acknowledged | Committed | SentBack | Reigned | Fault | Stored
_KINDS: Final = {
    kind.__name__: kind for kind in (Sent, Seen, Acknowledged, Committed, SentBack, Reigned, Fault, Stored)
}


@dataclass(slots=True)
class Recorded:
    """All events of a run, each kind in the order of its recording."""

    sent: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    sent_back: list[SentBack] = field(default_factory=list)
    reigned: list[Reigned] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: What the final read found after recovery.
    stored: list[Stored] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Append the event to its list."""
        lists: dict[type, list[Any]] = {
            Sent: self.sent,
            Seen: self.seen,
            Acknowledged: self.acknowledged,
            Committed: self.committed,
            SentBack: self.sent_back,
            Reigned: self.reigned,
            Fault: self.faults,
            Stored: self.stored,
        }
        lists[type(event)].append(event)

    @classmethod
    def of(cls, *events: Event) -> Recorded:
        """Make a run of the given events."""
        made = cls()
        for event in events:
            made.add(event)
        return made

    @classmethod
    def read(cls, *files: Path) -> Recorded:
        """Read `HistoryFile`s; a last line that a kill cut off is ignored."""
        made = cls()
        for file in files:
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        made.add(_event(json.loads(line)))
        return made


class HistoryFile:
    """Writes events as lines of JSON. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1 << 16)
        self._lock = threading.Lock()

    def write(self, events: Iterable[Event]) -> None:
        """Write the events."""
        lines = [json.dumps([type(event).__name__, *_values(event)], separators=(",", ":")) for event in events]
        if lines:
            with self._lock:
                self._file.write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Flush and close the file."""
        with self._lock:
            self._file.close()


def _values(event: Event) -> list[Any]:
    return [getattr(event, each.name) for each in dataclasses.fields(event)]


def _event(line: list[Any]) -> Event:
    kind = _KINDS[line[0]]
    values = [Place(*value) if isinstance(value, list) else value for value in line[1:]]
    made: Event = kind(*values)
    return made
