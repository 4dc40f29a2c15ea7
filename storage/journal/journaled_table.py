"""A table in memory whose changes are events of the state journal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from raymq.storage.errors import StoreError
from raymq.storage.journal.recovery_bounds import RecoveryBounds

#: The values of an event; msgpack has to be able to encode them.
Fields = Sequence[Any]


class EventJournal(Protocol):
    """What a table needs of the journal that stores its events."""

    @property
    def synced(self) -> int:
        """Return the number up to which all events are on disk."""

    def append(self, table: JournaledTable, fields: Fields) -> int:
        """Write an event and apply it to the table; return its number."""

    def sync(self, number: int | None = None) -> None:
        """Wait until the event, or all events so far, are on disk."""

    def newest_of(self, table: JournaledTable) -> int:
        """Return the number of a table's newest event since the opening, or 0."""


class JournaledTable(ABC):
    """One table of a store's state.

    A table changes in one way only: an event is written to the journal, then `apply` is called. A start calls `apply`
    for the events of a snapshot and of the journal behind it, so the table is the same afterwards.

    A snapshot is written while changes continue, so it may have the effect of events that are replayed after it.
    Therefore each event holds the resulting state and not a difference: applying a row of events to a table that
    already has the effect of some of them gives the same table.

    Attributes:
        NUMBER: identifies the table in the journal; never changes and is never used again.
        COPIES: how often each event is written: 2 for decisions about other data, so that a flipped bit costs nothing.
        journal: stores the events; None in a store that was opened read-only or is closed.
    """

    NUMBER: ClassVar[int]
    COPIES: ClassVar[int] = 1

    journal: EventJournal | None = None

    @abstractmethod
    def apply(self, fields: Fields) -> None:
        """Apply an event. The journal's lock is held, unless the store is being opened.

        Raises:
            one of `json_file.DECODE_ERRORS`: it is no event of this table. The table is unchanged, and the event is
                set aside.
        """

    def apply_after_loss(self, fields: Fields) -> None:
        """Apply an event before which some events were lost, of any table."""
        self.apply(fields)

    @abstractmethod
    def snapshot(self) -> Iterator[Fields]:
        """Return events that make this table out of an empty one, at least.

        It runs on another thread than the changes. So it must copy what it iterates over in one operation of the
        interpreter, and an event must not be larger than some hundred rows.
        """

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:  # noqa: ARG002 - most tables need none
        """Return the events that remove what refers to a lost part of the log.

        Args:
            bounds: what the log has after recovery.
        """
        return iter(())

    def forget_topic(self, topic: str, log_end: int) -> None:  # noqa: B027 - most tables have no topics
        """Remove what belongs to a deleted topic, as part of its deletion's event.

        Args:
            log_end: where the log ended when the topic was deleted.
        """

    def record(self, *fields: Any) -> int:
        """Write an event that survives a process crash, and apply it; return its number.

        Raises:
            StoreError: the store was opened read-only, or is closed.
            StoreFull, StoreFailed: nothing has changed.
        """
        if self.journal is None:
            raise StoreError("the store was opened read-only, or closed")
        return self.journal.append(self, fields)

    def record_durably(self, *events: Fields) -> None:
        """Write events, apply them, and wait until they are on disk.

        Raises:
            StoreError: as `record`; or the store was closed before they were on disk.
            StoreFull: as `record`; the events before the refused one have been applied.
            StoreFailed: as `record`; or they have been applied, and it is unknown whether they are on disk. Then the
                store has failed.
        """
        journal = self.journal
        numbers = [self.record(*fields) for fields in events]
        if numbers and journal is not None:
            journal.sync(numbers[-1])

    def sync(self) -> None:
        """Wait until the table's events are on disk, also those that the start has read.

        For calls that find their change made already: the one that made it may have failed in its sync.

        Raises:
            StoreBusy, StoreFull, StoreFailed: as `StateJournal.sync`.
        """
        if self.journal is not None:
            self.journal.sync(max(1, self.journal.newest_of(self)))
