"""Messages that were popped and not yet received: their time runs already. No I/O, injected clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from raymq.client.message import ReceivedMessage

#: Of its invisible time a message has to have at least this share left when it is received.
LEAST_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Popped:
    """A message, and from when on too little of its time is left."""

    message: ReceivedMessage
    late_at: float


class Kept:
    """What one consumer holds for whoever receives next. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._popped: deque[Popped] = deque()

    @property
    def count(self) -> int:
        """How many messages are there."""
        return len(self._popped)

    def add(self, messages: Sequence[ReceivedMessage], asked_at: float, invisible_seconds: float) -> None:
        """A pop that was sent at `asked_at` brought these: their time has begun then, or later."""
        late_at = asked_at + invisible_seconds * (1.0 - LEAST_SHARE)
        self._popped.extend(Popped(message, late_at) for message in messages)

    def take(self, limit: int) -> tuple[list[Popped], list[ReceivedMessage]]:
        """At most `limit` messages that have time enough, and those before them that have not."""
        found: list[Popped] = []
        late: list[ReceivedMessage] = []
        now = self._clock()
        while self._popped and len(found) < limit:
            popped = self._popped.popleft()
            if now < popped.late_at:
                found.append(popped)
            else:
                late.append(popped.message)
        return found, late

    def put_back(self, popped: Sequence[Popped]) -> None:
        """What was taken has not reached whom it was for: it is the next one's."""
        self._popped.extendleft(reversed(popped))

    def empty(self) -> list[ReceivedMessage]:
        """All that is there; nothing is kept any more."""
        left = [popped.message for popped in self._popped]
        self._popped.clear()
        return left
