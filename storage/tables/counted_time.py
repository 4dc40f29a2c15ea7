"""Save the count of seconds in which a store has been open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: Larger counts are impossible.
_MOST: Final = 1e11


class CountedTime(JournaledTable):
    """The saved count of one store.

    Events: [seconds].

    Attributes:
        seconds: the saved count; 0 if none was saved.
    """

    NUMBER: ClassVar = 16

    def __init__(self) -> None:
        self.seconds = 0.0

    def save(self, seconds: float) -> None:
        """Save a count. Raise StoreFull or StoreFailed if it cannot be written."""
        self.record(seconds)

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        seconds = float(*fields)
        if not 0.0 <= seconds < _MOST:
            raise ValueError(f"not a count of seconds: {seconds}")
        self.seconds = seconds

    def snapshot(self) -> Iterator[Fields]:
        """Return one event with the count."""
        yield (self.seconds,)
