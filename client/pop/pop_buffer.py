"""Hold messages that were popped and not yet received, whose leases already run.

No I/O, injected clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from raymq.client.message import ReceivedMessage

#: The least share of its lease that a message must have left when it is received.
LEAST_SHARE: Final = 0.5
#: Messages with a short lease are kept for the next `receive`, too: their leases are renewed for this long.
KEPT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A popped message and the times of its lease.

    Attributes:
        invisible_ms: the length of the lease for which the message was popped.
        late_at: the time from which on too little of the lease is left.
        renewed_until: the time until which the lease is renewed.
    """

    message: ReceivedMessage
    invisible_ms: int
    late_at: float
    renewed_until: float


class ReceiveCall:
    """The receiver of messages on the engine's loop, whose caller runs elsewhere.

    The caller waits on another thread or another loop. A call that was given up may still begin on the engine's loop
    after the engine processed the notice of it. The notice alone is therefore not enough, and the caller's thread also
    sets `has_given_up` before it sends the notice.
    """

    __slots__ = ("has_given_up",)

    def __init__(self) -> None:
        #: The caller no longer waits, so the engine must give no messages to this call.
        self.has_given_up = False


class PopBuffer:
    """The popped messages of one consumer that are kept for its next `receive`.

    `clock` returns seconds and also advances while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._popped: list[BufferedMessage] = []

    def count(self, invisible_ms: int) -> int:
        """Return how many messages are there with a lease of at least `invisible_ms`."""
        return sum(popped.invisible_ms >= invisible_ms for popped in self._popped)

    @property
    def next_late_at(self) -> float | None:
        """Return when the first message becomes late, or None if there is no message."""
        return min((popped.late_at for popped in self._popped), default=None)

    def add(self, messages: Sequence[ReceivedMessage], asked_at: float, invisible_ms: int) -> float:
        """Add the messages of a pop, and return when they become late.

        The pop was sent at `asked_at`, so their leases began then or later.
        """
        late_at = _late_at(asked_at, invisible_ms)
        until = asked_at + KEPT_SECONDS
        self._popped += [BufferedMessage(message, invisible_ms, late_at, until) for message in messages]
        return late_at

    def take(self, limit: int, invisible_ms: int) -> list[BufferedMessage]:
        """Remove and return messages with a long enough lease and enough time left.

        At most `limit` messages with a lease of at least `invisible_ms` are returned.
        """
        now = self._clock()
        found = [each for each in self._popped if each.invisible_ms >= invisible_ms and now < each.late_at][:limit]
        self._without(found)
        return found

    def take_rest(self, taken: Collection[BufferedMessage]) -> list[ReceivedMessage]:
        """Remove and return the other messages of the queues of `taken`."""
        queues = {popped.message.queue for popped in taken}
        rest = [popped for popped in self._popped if popped.message.queue in queues]
        self._without(rest)
        return [popped.message for popped in rest]

    def late(self) -> tuple[list[BufferedMessage], list[BufferedMessage]]:
        """Remove the messages whose lease is half over.

        Return the messages to renew, and the messages to give back.
        """
        now = self._clock()
        late = [popped for popped in self._popped if now >= popped.late_at]
        self._without(late)
        return [each for each in late if now < each.renewed_until], [each for each in late if now >= each.renewed_until]

    def put_back(self, popped: Collection[BufferedMessage]) -> None:
        """Put taken messages that did not reach their receiver back, before all others."""
        self._popped[:0] = popped

    def renewed(self, popped: BufferedMessage, asked_at: float) -> float:
        """Add a late message whose lease was renewed at `asked_at`.

        Return when it becomes late again.
        """
        late_at = _late_at(asked_at, popped.invisible_ms)
        self._popped.append(BufferedMessage(popped.message, popped.invisible_ms, late_at, popped.renewed_until))
        return late_at

    def empty(self) -> list[ReceivedMessage]:
        """Remove and return all messages."""
        left = [popped.message for popped in self._popped]
        self._popped.clear()
        return left

    def _without(self, removed: Sequence[BufferedMessage]) -> None:
        if removed:
            taken = set(map(id, removed))
            self._popped = [popped for popped in self._popped if id(popped) not in taken]


def _late_at(asked_at: float, invisible_ms: int) -> float:
    return asked_at + invisible_ms / 1000 * (1.0 - LEAST_SHARE)
