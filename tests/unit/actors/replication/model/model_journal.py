"""Model the state journal of one broker: numbered events after a snapshot.

Every change of a table is an event with the next number and the log's end at that moment. The numbers continue over
restarts and snapshots. Events in a snapshot cannot be cut off again, so a snapshot has only confirmed events.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent


class ModelJournal:
    """The events of one broker behind its snapshot, for one thread.

    Attributes:
        snapshot: the number of the newest event in the snapshot.
    """

    def __init__(self, snapshot: int = 0, events: Iterable[JournalEvent] = ()) -> None:
        """Create a journal of `events`. Raise ProtocolError if they are not consecutive."""
        self.snapshot = snapshot
        self._events: list[JournalEvent] = []
        for event in events:
            self.take(event)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def last(self) -> int:
        """Return the number of the newest event."""
        return self.snapshot + len(self._events)

    def append(self, payload: bytes, log_offset: int) -> JournalEvent:
        """Append and return a new event of a master."""
        event = JournalEvent(self.last + 1, log_offset, payload)
        self.take(event)
        return event

    def take(self, event: JournalEvent) -> None:
        """Append the next event of a master's journal.

        Raises:
            ProtocolError: it is not the next one, or its log offset is before that of the previous event.
        """
        if event.sequence != self.last + 1 or not event.payload or event.log_offset < 0:
            raise ProtocolError(f"received event {event.sequence}, expected {self.last + 1}")
        if self._events and event.log_offset < self._events[-1].log_offset:
            raise ProtocolError(f"event {event.sequence} goes back in the log, to {event.log_offset}")
        self._events.append(event)

    def after(self, sequence: int) -> Sequence[JournalEvent]:
        """Return the events after a number. Raise InvalidInput if some of them are only in the snapshot."""
        self._check_behind_snapshot(sequence)
        return self._events[sequence - self.snapshot :]

    def cut(self, sequence: int) -> None:
        """Remove the events after a number. Raise InvalidInput if some are in the snapshot."""
        self._check_behind_snapshot(sequence)
        del self._events[sequence - self.snapshot :]

    def clamp(self, log_end: int) -> int:
        """Drop events whose log offset is beyond `log_end`, after a loss of power; return how many."""
        keep = bisect_right(self._events, log_end, key=lambda event: event.log_offset)
        dropped = len(self._events) - keep
        del self._events[keep:]
        return dropped

    def compact(self, sequence: int, confirmed: StreamPosition) -> Sequence[JournalEvent]:
        """Move the events up to a number into the snapshot, and return them.

        Raises:
            InvalidInput: not all of them are confirmed.
        """
        most = max(min(confirmed.sequence, self.last), self.snapshot)
        if sequence > most:
            raise InvalidInput("sequence", f"at most {most}, which is confirmed", sequence)
        count = max(sequence - self.snapshot, 0)
        compacted = self._events[:count]
        del self._events[:count]
        self.snapshot += count
        return compacted

    def _check_behind_snapshot(self, sequence: int) -> None:
        if sequence < self.snapshot:
            raise InvalidInput("sequence", f"at least {self.snapshot}, earlier events are in the snapshot", sequence)
