"""Track which queues are skipped for a while after errors. No I/O.

Each queue is skipped for its own failures only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.protocol import MessageQueue

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 5.0


class QueueBackoffs:
    """The queues of one consumer that could not be read. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._backoffs: dict[MessageQueue, Backoff] = {}
        self._not_before: dict[MessageQueue, float] = {}

    def failed(self, queue: MessageQueue) -> float:
        """Record that a queue could not be read, and return its pause in seconds."""
        backoff = self._backoffs.get(queue)
        if backoff is None:
            backoff = self._backoffs[queue] = Backoff(first=FIRST_SECONDS, cap=LONGEST_SECONDS)
        delay = backoff.next_delay()
        self._not_before[queue] = self._clock() + delay
        return delay

    def succeeded(self, queue: MessageQueue) -> None:
        """Forget the failures of a queue that was read or now belongs to another member."""
        self._backoffs.pop(queue, None)
        self._not_before.pop(queue, None)

    def queues(self) -> list[MessageQueue]:
        """Return the queues with recorded failures."""
        return list(self._backoffs)

    def is_due(self, queue: MessageQueue) -> bool:
        """Return True if a queue may be tried."""
        if not self._not_before:
            return True
        return self._not_before.get(queue, 0.0) <= self._clock()
