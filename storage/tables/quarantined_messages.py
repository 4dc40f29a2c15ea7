"""Stored messages of which no copy could be made: which message, for what, and why.

The records stay in the log until they expire; a note holds their position. The newest `KEPT` notes are kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Final, Self

from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The number of notes that are kept.
KEPT: Final = 10_000
#: The most notes in an event.
_EVENT_NOTES: Final = 500


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One quarantined message.

    Attributes:
        duty: the copy that should have been made, such as "delay level" or "retry".
        owner: for whom: a group, a level, a transaction; empty without an owner.
        topic, queue_id, offset: its position in a queue; "" and -1 if only its position in the log is known.
        physical_offset: its position in the log, -1 if the queue's entry does not hold it.
        message_id: empty if it is not known.
        reason: one sentence.
        time_ms: when it was quarantined.
    """

    duty: str
    owner: str
    topic: str
    queue_id: int
    offset: int
    physical_offset: int
    message_id: str
    reason: str
    time_ms: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key of the note; notes with equal keys describe the same outcome."""
        return self.duty, self.owner, self.topic, self.queue_id, self.offset, self.physical_offset

    @classmethod
    def of(cls, values: Iterable[Any]) -> Self:
        """Return the note with these values; raise ValueError or TypeError if they are no note's."""
        duty, owner, topic, queue_id, offset, physical_offset, message_id, reason, time_ms = values
        place = int(queue_id), int(offset), int(physical_offset)
        return cls(_text(duty), _text(owner), _text(topic), *place, _text(message_id), _text(reason), int(time_ms))

    def __str__(self) -> str:
        what = f"message {self.message_id}" if self.message_id else "a message"
        where = f"{self.topic} queue {self.queue_id} offset {self.offset}, " if self.topic else ""
        return f"{what} ({where}byte {self.physical_offset} of the log): {self.reason}"


class QuarantinedMessages(JournaledTable):
    """The notes of one store; one thread at a time.

    Events: [[[the values of a note in the order of `QuarantineEntry`], ...]].
    """

    NUMBER: ClassVar = 17

    def __init__(self) -> None:
        #: Oldest first.
        self._notes: OrderedDict[tuple[Any, ...], QuarantineEntry] = OrderedDict()
        #: The number of notes by duty: the kept ones and all that were added since.
        self.counts: Counter[str] = Counter()

    def notes(self) -> list[QuarantineEntry]:
        """Return the kept notes, oldest first."""
        return list(self._notes.values())

    def put(self, notes: Iterable[QuarantineEntry]) -> list[QuarantineEntry]:
        """Add notes; they survive a process crash when this returns.

        Returns:
            The notes that are new.

        Raises:
            StoreFull, StoreFailed: not all notes are kept; another call adds the others.
        """
        plain = [QuarantineEntry.of(astuple(note)) for note in notes]
        new = list({note.key: note for note in plain if note.key not in self._notes}.values())
        for fields in _events(new):
            self.record(*fields)
        return new

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        (rows,) = fields
        for note in [QuarantineEntry.of(row) for row in rows]:
            if note.key not in self._notes:
                self.counts[note.duty] += 1
            self._notes[note.key] = note
            # Notes that a snapshot has already are the newest ones again.
            self._notes.move_to_end(note.key)
        while len(self._notes) > KEPT:
            self._notes.popitem(last=False)

    def snapshot(self) -> Iterator[Fields]:
        """Return events of some hundred notes each, oldest first."""
        return _events(list(self._notes.values()))


def _events(notes: list[QuarantineEntry]) -> Iterator[Fields]:
    for begin in range(0, len(notes), _EVENT_NOTES):
        yield ([astuple(note) for note in notes[begin : begin + _EVENT_NOTES]],)


def _text(value: Any) -> str:
    """Return a text without halves of characters, which no event can hold."""
    return str(value).encode("utf-8", "backslashreplace").decode()
