"""How often the producers of open transactions were asked.

RocketMQ stores a half anew for each question. Here an event counts it, and the half stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar, Final

from raymq.storage.errors import StoreError
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds

#: In place of an offset: the event is about the log.
_LOG: Final = -1
#: The queue of half messages: topic and queue id.
_HALF_QUEUE: Final = ("RMQ_SYS_TRANS_HALF_TOPIC", 0)


class TransactionChecks(JournaledTable):
    """The questions about open halves, by their offset. Used on the broker's event loop.

    Events: [offset, how often its producers were asked; 0 = forget it], [-1, physical offset].

    Attributes:
        known_before: before this physical offset each commit in the log has its operation record.
    """

    NUMBER: ClassVar = 14

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}
        self.known_before = 0

    def asked(self, offset: int) -> int | None:
        """Return how often the producers of the half at `offset` were asked; None if never."""
        return self._asked.get(offset)

    def count(self, offset: int, asked: int) -> None:
        """Set how often the producers of the half at `offset` were asked.

        If the disk refuses it, they are asked once more after a restart.
        """
        with contextlib.suppress(StoreError):
            self.record(offset, asked)

    def forget(self, offset: int) -> None:
        """Forget the questions about a half, unless the disk refuses it."""
        if offset in self._asked:
            self.count(offset, 0)

    def forget_before(self, begin: int) -> None:
        """Forget the questions about halves before offset `begin`, which have ended."""
        for offset in [each for each in self._asked if each < begin]:
            self.forget(offset)

    def note_complete(self, log_offset: int) -> None:
        """Set `known_before`. Raise StoreFull or StoreFailed if it cannot be written."""
        self.record(_LOG, log_offset)

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        offset, value = map(int, fields)
        if offset == _LOG:
            self.known_before = value
        elif value > 0:
            self._asked[offset] = value
        else:
            self._asked.pop(offset, None)

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each half with questions, and one for the log."""
        yield _LOG, self.known_before
        yield from self._asked.copy().items()

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Forget the questions about halves that a loss of power took."""
        end = bounds.max_offset(*_HALF_QUEUE)
        for offset in [each for each in self._asked if each >= end]:
            yield offset, 0
        if not bounds.has(self.known_before):
            yield _LOG, bounds.log_end
