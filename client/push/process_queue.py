"""One queue as its consumer sees it: what was fetched and not finished, how far a commit may go. No I/O.

The commit offset is the lowest offset that is still in flight: what finished behind it waits, and is delivered again
if the consumer dies before the gap closes.
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
    """Used on one thread. `next_offset` is where the next fetch starts, `epoch` the recovery epoch that its broker had
    when all before was fetched (0: not known).

    A message is ready from `extend` until `take`, and in flight from `extend` until `finish`.
    """

    queue: MessageQueue
    next_offset: int
    window: FetchWindow = _USUAL_WINDOW
    #: Of the topic in which the offsets are meant.
    incarnation: int = 0
    dropped: bool = False
    #: The group was sent elsewhere when this was dropped already: how far it is done counts no more.
    is_void: bool = False
    epoch: int = 0
    #: Nothing is fetched until it has room again.
    waits_for_room: bool = False
    #: It cannot have some before as few messages are in flight, those aside not counted.
    worth_below: int = MAX_SPAN_PARKED
    #: How many of the messages in flight wait aside, behind a failed one of their key.
    parked: int = 0
    _ready: deque[ReceivedMessage] = field(default_factory=deque)
    _in_flight: dict[int, int] = field(default_factory=dict)
    #: The offsets in flight in their order; finished ones leave when they come to the front.
    _order: deque[int] = field(default_factory=deque)
    _bytes: int = 0

    def extend(self, messages: Sequence[ReceivedMessage], sizes_bytes: Sequence[int]) -> None:
        """Messages were fetched; offsets come in rising order."""
        if not messages:
            return
        offsets = [message.queue_offset for message in messages]
        self._ready.extend(messages)
        self._in_flight.update(zip(offsets, sizes_bytes, strict=True))
        self._order.extend(offsets)
        self._bytes += sum(sizes_bytes)
        self.next_offset = max(self.next_offset, offsets[-1] + 1)

    def extend_in_flight(self, offset: int, size_bytes: int) -> None:
        """One message was fetched and is taken already."""
        self._in_flight[offset] = size_bytes
        self._order.append(offset)
        self._bytes += size_bytes
        self.next_offset = max(self.next_offset, offset + 1)

    def take(self, limit: int) -> list[ReceivedMessage]:
        """The next ready messages in order, at most `limit`."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """Make taken messages ready again, before all others."""
        self._ready.extendleft(reversed(messages))

    def finish(self, offset: int) -> None:
        """A message is done: consumed, or safely sent back."""
        self._bytes -= self._in_flight.pop(offset, 0)

    @property
    def ready(self) -> int:
        """How many messages wait for a listener."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        """How many messages are fetched and not finished."""
        return len(self._in_flight)

    @property
    def commit_offset(self) -> int:
        """Everything below is finished."""
        order = self._order
        while order and order[0] not in self._in_flight:
            order.popleft()
        return order[0] if order else self.next_offset

    @property
    def room(self) -> int:
        """How many messages more may be fetched."""
        span = self.next_offset - self.commit_offset
        return self.window.room(len(self._in_flight), self.parked, self._bytes, span, len(self._ready))

    @property
    def has_room(self) -> bool:
        """Whether there is room for so many that a fetch is worth its while; `worth_below` is brought up to date."""
        room = self.room
        self.worth_below = self.window.worth_below(room)
        return room >= self.window.worth

    @property
    def lacking(self) -> int:
        """So many messages at least have to be finished before it can have room. Any thread."""
        return len(self._in_flight) - self.parked - self.worth_below

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        offsets = list(self._in_flight)
        assert offsets == sorted(offsets)
        assert offsets == [offset for offset in self._order if offset in self._in_flight]
        assert self._bytes == sum(self._in_flight.values())
        assert all(offset < self.next_offset for offset in offsets)
        assert {message.queue_offset for message in self._ready} <= set(offsets)
