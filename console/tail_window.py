"""Hold a live tail's messages for the browser, and count those it misses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.client import MessageQueue

#: The most messages that are held; of more, the oldest are dropped and counted.
HELD_MESSAGES: Final = 50


@dataclass(frozen=True, slots=True)
class TailBatch:
    """What happened since the last batch.

    Attributes:
        too_fast: messages that were dropped because more came than are shown.
        missing: offsets that the brokers did not deliver: expired or damaged messages.
    """

    messages: list[dict[str, Any]]
    too_fast: int = 0
    missing: int = 0


@dataclass(slots=True)
class TailWindow:
    """The messages between two batches."""

    held: int = HELD_MESSAGES
    _rows: deque[dict[str, Any]] = field(default_factory=deque)
    _next_offsets: dict[MessageQueue, int] = field(default_factory=dict)
    _too_fast: int = 0
    _missing: int = 0

    def put(self, queue: MessageQueue, offset: int, row: dict[str, Any]) -> None:
        """Add the next message of a queue."""
        expected = self._next_offsets.get(queue, offset)
        self._missing += max(0, offset - expected)
        self._next_offsets[queue] = offset + 1
        self._rows.append(row)
        if len(self._rows) > self.held:
            self._rows.popleft()
            self._too_fast += 1

    def take(self) -> TailBatch:
        """Return what came since the last call, and forget it."""
        batch = TailBatch(list(self._rows), self._too_fast, self._missing)
        self._rows.clear()
        self._too_fast = self._missing = 0
        return batch
