"""Track the messages of one queue that were fetched and not finished. No I/O.

The commit offset is the lowest offset that is still in flight. Messages above it that are finished are delivered again
if the consumer crashes before the gap closes.

A window limits how far a queue is fetched ahead of its consumer: a reset or skip forward takes effect only after the
messages that were fetched before it. A consumer that fetched after each finished message would fetch messages one by
one, so it waits until a fetch is worthwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage

#: Flow control per queue (RocketMQ's pullThreshold values): how many messages and bytes may be fetched and not
#: finished.
MAX_MESSAGES: Final = 1_000
MAX_BYTES: Final = 100 * 1024 * 1024
#: No more is fetched if the first and the last of these messages are this many offsets apart.
MAX_SPAN: Final = 2_000
#: Parked messages, which wait for a failed message of their key, do not count above. At most this many may be parked.
MAX_PARKED: Final = 2_000
#: While messages are parked, the span may grow to this. A consumer that crashes then gets this much again.
MAX_SPAN_PARKED: Final = 100_000
#: The next fetch starts when this share of the messages that may be fetched ahead is free. A smaller share costs up to
#: a tenth more CPU.
WORTH_PART: Final = 0.75


@dataclass(frozen=True, slots=True)
class FetchWindow:
    """The limits of a queue of which `messages` may be fetched and not finished.

    If `waiting_only` is set, only messages whose calls have not begun count.
    """

    messages: int = MAX_MESSAGES
    waiting_only: bool = False

    @property
    def worth(self) -> int:
        """Return how many messages make a fetch worthwhile."""
        return max(1, int(self.messages * WORTH_PART))

    def room(self, in_flight: int, parked: int, size_bytes: int, span: int, ready: int = 0) -> int:
        """Return for how many more messages there is room.

        Args:
            in_flight: how many messages are fetched and not finished.
            parked: how many of them are parked.
            size_bytes: how many bytes they have.
            span: how far the first of them is from the start of the next fetch.
            ready: how many of them wait for their calls.
        """
        if size_bytes >= MAX_BYTES or parked >= MAX_PARKED or span >= (MAX_SPAN_PARKED if parked else MAX_SPAN):
            return 0
        return max(0, self.messages - (ready if self.waiting_only else in_flight - parked))

    def worth_below(self, room: int) -> int:
        """Return the number of messages in flight above which a fetch is not worthwhile.

        Parked messages do not count.
        """
        # If there is no room, the reason may be the bytes or the span, so each finished message may make room. If only
        # waiting messages count, each call that begins may make room, too.
        return self.messages - self.worth if room and not self.waiting_only else MAX_SPAN_PARKED


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
    def first_ready(self) -> ReceivedMessage | None:
        """Return the message of the next listener call."""
        return self._ready[0] if self._ready else None

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
