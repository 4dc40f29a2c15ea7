"""One queue as its consumer sees it: what was fetched and not finished, how far a commit may go. No I/O.

The commit offset is the lowest offset that is still in flight: what finished behind it waits, and is delivered again
if the consumer dies before the gap closes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raymq.actors.protocol import MessageQueue

#: Flow control per queue: above any of these nothing more is fetched (RocketMQ's pullThreshold values).
MAX_MESSAGES = 1_000
MAX_BYTES = 100 * 1024 * 1024
MAX_SPAN = 2_000


@dataclass(slots=True)
class ProcessQueue:
    """Used on one thread. `next_offset` is where the next fetch starts."""

    queue: MessageQueue
    next_offset: int
    dropped: bool = False
    _in_flight: dict[int, int] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, offset: int, size_bytes: int) -> None:
        """A message was fetched; offsets come in rising order."""
        self._in_flight[offset] = size_bytes
        self._bytes += size_bytes
        self.next_offset = max(self.next_offset, offset + 1)

    def finish(self, offset: int) -> None:
        """A message is done: consumed, or safely sent back."""
        self._bytes -= self._in_flight.pop(offset, 0)

    @property
    def in_flight(self) -> int:
        """How many messages are fetched and not finished."""
        return len(self._in_flight)

    @property
    def commit_offset(self) -> int:
        """Everything below is finished."""
        return next(iter(self._in_flight), self.next_offset)

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched."""
        span = self.next_offset - self.commit_offset
        return self.in_flight < MAX_MESSAGES and self._bytes < MAX_BYTES and span < MAX_SPAN

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        offsets = list(self._in_flight)
        assert offsets == sorted(offsets)
        assert self._bytes == sum(self._in_flight.values())
        assert all(offset < self.next_offset for offset in offsets)
