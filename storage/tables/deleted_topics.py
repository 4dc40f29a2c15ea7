"""Deleted topics whose records are still in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds

#: How many deletions are kept after no record from before them is left in the log.
_KEPT_DELETIONS: Final = 10_000
#: Kinds of events: a topic is deleted, it was deleted there, its deletion has no meaning any more.
_DELETED: Final = "d"
_KNOWN: Final = "k"
_EXPIRED: Final = "x"


class DeletedTopics(JournaledTable):
    """Where the log ended at the last deletion of each deleted topic.

    Events: ["d", topic, log end], ["k", topic, log end], ["x", topic]. The first one is the deletion: all other tables
    forget the topic with it.

    Changed by the store's thread.
    """

    NUMBER: ClassVar = 1
    COPIES: ClassVar = 2

    def __init__(self, others: Sequence[JournaledTable]) -> None:
        """Keep the tables that forget a deleted topic."""
        self._others = others
        #: The log's end by topic; callers must not change it.
        self.places: dict[str, int] = {}

    def deletion(self, topic: str, log_end: int) -> Fields:
        """Return the event that deletes a topic."""
        return _DELETED, topic, log_end

    def expire(self, log_min: int) -> None:
        """Forget the oldest deletions from before the log's begin, if there are too many.

        A replica may have more of the log than its master, so it may still need deletions that its master does not.

        Raise StoreFull or StoreFailed if it cannot be written.
        """
        if len(self.places) > _KEPT_DELETIONS:
            expired = [topic for topic, place in self.places.items() if place <= log_min]
            expired.sort(key=self.places.__getitem__)
            for topic in expired[: len(self.places) - _KEPT_DELETIONS]:
                self.record(_EXPIRED, topic)

    def add_known(self, deleted: Mapping[str, int]) -> Iterator[Fields]:
        """Return the events that add later deletions, which all other tables have applied."""
        for topic, place in deleted.items():
            if place > self.places.get(topic, -1):
                yield _KNOWN, topic, place

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, topic, *place = fields
        if kind == _EXPIRED:
            self.places.pop(topic, None)
            return
        (log_end,) = place
        if kind == _DELETED:
            for table in self._others:
                table.forget_topic(topic, log_end)
        elif kind != _KNOWN:
            raise ValueError(f"no kind of event: {kind!r:.20}")
        self.places[topic] = log_end

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each deletion."""
        for topic, place in self.places.copy().items():
            yield _KNOWN, topic, place

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Drop deletions that a truncation has undone; move later ones to the log's end."""
        for topic, place in self.places.items():
            valid = bounds.deleted_topics.get(topic)
            if valid is None:
                yield _EXPIRED, topic
            elif valid != place:
                yield _KNOWN, topic, valid
        yield from self.add_known(bounds.deleted_topics)
