"""Which queues are left alone for a while: each by its own failures. One's trouble is not the others'. No I/O."""

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
        """It could not be read; for how many seconds it is left alone."""
        backoff = self._backoffs.get(queue)
        if backoff is None:
            backoff = self._backoffs[queue] = Backoff(first=FIRST_SECONDS, cap=LONGEST_SECONDS)
        delay = backoff.next_delay()
        self._not_before[queue] = self._clock() + delay
        return delay

    def succeeded(self, queue: MessageQueue) -> None:
        """It was read, or is somebody else's now: nothing is held against it."""
        self._backoffs.pop(queue, None)
        self._not_before.pop(queue, None)

    def queues(self) -> list[MessageQueue]:
        """Those against which something is held."""
        return list(self._backoffs)

    def is_due(self, queue: MessageQueue) -> bool:
        """Whether it may be tried."""
        if not self._not_before:
            return True
        return self._not_before.get(queue, 0.0) <= self._clock()
