"""Track the messages of one queue that were fetched and not finished. No I/O.

The commit offset is the lowest offset that is still in flight. Messages above it that are finished are delivered again
if the consumer crashes before the gap closes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage
from raymq.client.push.fetch_window import MAX_SPAN_PARKED, FetchWindow

_USUAL_WINDOW = FetchWindow()


@dataclass(slots=True, eq=False)
class ProcessQueue:
    """The fetched messages of one queue. Used on one thread.

    `next_offset` is where the next fetch starts. `epoch` is the recovery epoch that the broker had when all messages
    before it were fetched (0: not known). A message is ready from `extend` until `take`, and in flight from `extend`
    until `finish`.
    """

    queue: MessageQueue
    next_offset: int
    window: FetchWindow = _USUAL_WINDOW
    #: The incarnation of the topic to which the offsets apply.
    incarnation: int = 0
    dropped: bool = False
    #: The group's offset was reset after this queue was dropped, so its position no longer counts.
    is_void: bool = False
    epoch: int = 0
    #: True if nothing is fetched until there is room again.
    waits_for_room: bool = False
    #: The queue cannot have room before at most this many messages are in flight, not counting parked ones.
    worth_below: int = MAX_SPAN_PARKED
    #: How many of the messages in flight are parked behind a failed message of their key.
    parked: int = 0
    _ready: deque[ReceivedMessage] = field(default_factory=deque)
    _in_flight: dict[int, int] = field(default_factory=dict)
    #: The offsets in flight in order. Finished ones are removed when they reach the front.
    _order: deque[int] = field(default_factory=deque)
    _bytes: int = 0

    def extend(self, messages: Sequence[ReceivedMessage], sizes_bytes: Sequence[int]) -> None:
        """Add fetched messages, which are in order of their offsets and behind those added before."""
        if not messages:
            return
        offsets = [message.queue_offset for message in messages]
        self._ready.extend(messages)
        self._in_flight.update(zip(offsets, sizes_bytes, strict=True))
        self._order.extend(offsets)
        self._bytes += sum(sizes_bytes)
        self.next_offset = max(self.next_offset, offsets[-1] + 1)

    def extend_in_flight(self, offset: int, size_bytes: int) -> None:
        """Add one fetched message that is taken already."""
        self._in_flight[offset] = size_bytes
        self._order.append(offset)
        self._bytes += size_bytes
        self.next_offset = max(self.next_offset, offset + 1)

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Remove and return the next ready messages in order, at most `limit`."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """Make taken messages ready again, before all others."""
        self._ready.extendleft(reversed(messages))

    def finish(self, offset: int) -> None:
        """Finish a message that was consumed or safely sent back."""
        self._bytes -= self._in_flight.pop(offset, 0)

    @property
    def ready(self) -> int:
        """Return how many messages wait for a listener call."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        """Return how many messages are fetched and not finished."""
        return len(self._in_flight)

    @property
    def commit_offset(self) -> int:
        """Return the offset below which all messages are finished."""
        order = self._order
        while order and order[0] not in self._in_flight:
            order.popleft()
        return order[0] if order else self.next_offset

    @property
    def room(self) -> int:
        """Return how many more messages may be fetched."""
        span = self.next_offset - self.commit_offset
        return self.window.room(len(self._in_flight), self.parked, self._bytes, span, len(self._ready))

    @property
    def has_room(self) -> bool:
        """Return True if there is room for enough messages to make a fetch worthwhile.

        Update `worth_below`.
        """
        room = self.room
        self.worth_below = self.window.worth_below(room)
        return room >= self.window.worth

    @property
    def lacking(self) -> int:
        """Return how many messages at least must be finished before there can be room.

        Any thread may call this.
        """
        return len(self._in_flight) - self.parked - self.worth_below

    def validate(self) -> None:
        """Assert the invariants, after every unit test."""
        offsets = list(self._in_flight)
        assert offsets == sorted(offsets)
        assert offsets == [offset for offset in self._order if offset in self._in_flight]
        assert self._bytes == sum(self._in_flight.values())
        assert all(offset < self.next_offset for offset in offsets)
        assert {message.queue_offset for message in self._ready} <= set(offsets)
