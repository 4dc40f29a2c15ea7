"""Messages that were popped and not yet received: their time runs already. No I/O, injected clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from raymq.client.message import ReceivedMessage

#: Of its invisible time a message has to have at least this share left when it is received.
LEAST_SHARE: Final = 0.5
#: What was popped for a short time is kept for who asks soon, all the same: for so long its time is renewed.
KEPT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A message, for how long it was popped, from when on too little of that is left, and until when to renew it."""

    message: ReceivedMessage
    invisible_ms: int
    late_at: float
    renewed_until: float


class KeptMessages:
    """What one consumer holds for whoever receives next. `clock`: seconds, also of a machine that sleeps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._popped: list[KeptMessage] = []

    def count(self, invisible_ms: int) -> int:
        """How many messages are there for who wants them for so long."""
        return sum(popped.invisible_ms >= invisible_ms for popped in self._popped)

    @property
    def first_late_at(self) -> float | None:
        """When the first of them is late; None if nothing is there."""
        return min((popped.late_at for popped in self._popped), default=None)

    def add(self, messages: Sequence[ReceivedMessage], asked_at: float, invisible_ms: int) -> float:
        """A pop that was sent at `asked_at` brought these: their time has begun then, or later. When they are late."""
        late_at = _late_at(asked_at, invisible_ms)
        until = asked_at + KEPT_SECONDS
        self._popped += [KeptMessage(message, invisible_ms, late_at, until) for message in messages]
        return late_at

    def take(self, limit: int, invisible_ms: int) -> list[KeptMessage]:
        """At most `limit` messages that were popped for at least so long, and have time enough."""
        now = self._clock()
        found = [each for each in self._popped if each.invisible_ms >= invisible_ms and now < each.late_at][:limit]
        self._without(found)
        return found

    def rest_of(self, taken: Collection[KeptMessage]) -> list[ReceivedMessage]:
        """What else is there of the queues of these; it is kept no more."""
        queues = {popped.message.queue for popped in taken}
        rest = [popped for popped in self._popped if popped.message.queue in queues]
        self._without(rest)
        return [popped.message for popped in rest]

    def late(self) -> tuple[list[KeptMessage], list[KeptMessage]]:
        """Those whose time is half over: what is to be renewed, and what to be given back. They are kept no more."""
        now = self._clock()
        late = [popped for popped in self._popped if now >= popped.late_at]
        self._without(late)
        return [each for each in late if now < each.renewed_until], [each for each in late if now >= each.renewed_until]

    def put_back(self, popped: Collection[KeptMessage]) -> None:
        """What was taken has not reached whom it was for: it is the next one's."""
        self._popped[:0] = popped

    def renewed(self, popped: KeptMessage, asked_at: float) -> float:
        """It was late, and has all its time again since `asked_at`. When it is late again."""
        late_at = _late_at(asked_at, popped.invisible_ms)
        self._popped.append(KeptMessage(popped.message, popped.invisible_ms, late_at, popped.renewed_until))
        return late_at

    def empty(self) -> list[ReceivedMessage]:
        """All that is there; nothing is kept any more."""
        left = [popped.message for popped in self._popped]
        self._popped.clear()
        return left

    def _without(self, gone: Sequence[KeptMessage]) -> None:
        if gone:
            taken = set(map(id, gone))
            self._popped = [popped for popped in self._popped if id(popped) not in taken]


def _late_at(asked_at: float, invisible_ms: int) -> float:
    return asked_at + invisible_ms / 1000 * (1.0 - LEAST_SHARE)
