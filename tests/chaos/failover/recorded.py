"""What clients did and were told while things were broken: plain values, and the file in which they survive a process.

Times are seconds of the machine's monotonic clock, which all processes of a run share; those of the wall clock are
named so. A message's number is its body, and no two messages have the same.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

#: How a call ended: it did what was asked; surely nothing; nobody knows. What was stored, but not as safely as it was
#: asked for (FLUSH_SLAVE_TIMEOUT and the like), is unknown.
OK: Final = "ok"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"
#: How the target of a loss of a host ends where its disk stayed, because nobody else surely had what it has.
STAYS: Final = ", whose disk has the only copy and stays"


class Place(NamedTuple):
    """Where a message lies."""

    topic: str
    broker: str
    queue: int
    offset: int

    @property
    def line(self) -> tuple[str, str, int]:
        """Its queue."""
        return self.topic, self.broker, self.queue


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of one call of a producer.

    Attributes:
        key: messages of one key are sent one after the other, each when the one before was answered; "" has no order.
        due: the wall time before which it must not be there; 0: at once.
        once: its producer promises that it is not stored twice.
        place: where it was told to lie; None where it was not, or where a delayed one waits.
        why: what the call said that ended it, where it was not "ok".
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
    """A consumer was given a message.

    Attributes:
        how: "pull", "push" or "pop".
        began: when the call that brought it began; of a push consumer when its listener was called.
        wall: the wall time at which it was there.
        until: of a popped one: until when at least it is nobody else's.
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
    """A popped message was said to be done."""

    number: int
    place: Place
    group: str
    began: float
    ended: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's offset was written (`writes`), or read; an offset of -1: the group is said to have none."""

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
        """Whose offset, and in which queue."""
        return self.group, self.topic, self.broker, self.queue


@dataclass(frozen=True, slots=True)
class SentBack:
    """A reader was told that its place is none: what is there it has read, or never was."""

    group: str
    topic: str
    broker: str
    queue: int
    offset: int
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Reigned:
    """What the register of a group said."""

    at: float
    group: str
    epoch: int
    master: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the cluster, and when it was undone."""

    name: str
    target: str
    began: float
    healed: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it lies in its queue at the end."""

    number: int
    place: Place
    stored: float = 0.0


Event = Sent | Seen | Acknowledged | Committed | SentBack | Reigned | Fault | Stored
_KINDS: Final = {
    kind.__name__: kind for kind in (Sent, Seen, Acknowledged, Committed, SentBack, Reigned, Fault, Stored)
}


@dataclass(slots=True)
class Recorded:
    """All of a run, each kind in the order in which it was written down."""

    sent: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    sent_back: list[SentBack] = field(default_factory=list)
    reigned: list[Reigned] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: What readers found when all was whole again.
    stored: list[Stored] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Append it where it belongs."""
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
        """Those of a made-up run."""
        made = cls()
        for event in events:
            made.add(event)
        return made

    @classmethod
    def read(cls, *files: Path) -> Recorded:
        """What `HistoryFile`s hold; a last line that a kill has cut off is left out."""
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
        """Note them."""
        lines = [json.dumps([type(event).__name__, *_values(event)], separators=(",", ":")) for event in events]
        if lines:
            with self._lock:
                self._file.write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Bring all to the file."""
        with self._lock:
            self._file.close()


def _values(event: Event) -> list[Any]:
    return [getattr(event, each.name) for each in dataclasses.fields(event)]


def _event(line: list[Any]) -> Event:
    kind = _KINDS[line[0]]
    values = [Place(*value) if isinstance(value, list) else value for value in line[1:]]
    made: Event = kind(*values)
    return made
