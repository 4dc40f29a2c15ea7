"""Track the in-flight, ready and dead messages of one queue in one group. No I/O.

The deliveries themselves are in the store's durable table. This module adds the orders in which they are processed.
Each order may contain entries of ended deliveries, which are detected when their turn comes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from itertools import islice

from raymq.storage.tables.in_flight_messages import GroupQueue, InFlightMessage, InFlightQueue

#: How many entries of ended deliveries an order may hold, in addition to one per current delivery.
_SLACK = 64


class UnackedQueue:
    """A queue with messages in flight. Times are milliseconds since the epoch."""

    def __init__(self, queue: GroupQueue, outstanding: InFlightQueue) -> None:
        self.queue = queue
        self._outstanding = outstanding
        #: Whether the last pop was ordered, and its attempt id.
        self.ordered = False
        self.attempt_id: str | None = None
        self._order: deque[int] = deque()
        self._expiries: list[tuple[int, int, int]] = []
        self._ready: list[int] = []
        #: The ready offsets that did not expire but were released; their handles are void.
        self._recalled: set[int] = set()
        self._dead: deque[int] = deque()
        self.rebuild()

    @property
    def next_offset(self) -> int:
        """Return the offset of the first message that was never delivered."""
        return self._outstanding.next_offset

    @property
    def deliveries(self) -> dict[int, InFlightMessage]:
        """Return all messages that are in flight, ready again, or dead and not moved yet."""
        return self._outstanding.deliveries

    @property
    def is_blocked(self) -> bool:
        """Return True if an ordered consumer has to wait.

        That is the case while a message is with a consumer, or on its way to the dead letters.
        """
        return len(self.deliveries) > len(self._ready)

    @property
    def has_ready(self) -> bool:
        """Return True if a message may be delivered again."""
        return bool(self._ready)

    @property
    def ready_count(self) -> int:
        """Return how many messages may be delivered again."""
        return len(self._ready)

    @property
    def has_dead(self) -> bool:
        """Return True if a message is to be moved to the dead letters."""
        return bool(self._dead)

    @property
    def next_expiry_ms(self) -> int | None:
        """Return the earliest possible expiry, or None if no message is with a consumer."""
        return self._expiries[0][0] if self._expiries else None

    def ack_floor(self, without: Collection[int] = ()) -> int:
        """Return the group's offset: the oldest message in flight, ignoring `without`.

        If there is none, it is the next new offset.
        """
        while self._order and self._order[0] not in self.deliveries:
            self._order.popleft()
        return next((o for o in self._order if o in self.deliveries and o not in without), self.next_offset)

    def find_live(self, offset: int, pop_time_ms: int, now_ms: int) -> InFlightMessage | None:
        """Return the delivery that a handle names, if the handle is still valid."""
        delivery = self.deliveries.get(offset)
        if delivery is None or delivery.pop_time_ms != pop_time_ms or delivery.visible_at_ms <= now_ms:
            return None
        return None if offset in self._recalled else delivery

    def advance(self, now_ms: int, most: int) -> int:
        """Take back expired messages, checking at most `most` entries; return how many."""
        looked_at = 0
        while looked_at < most and self._expiries and self._expiries[0][0] <= now_ms:
            looked_at += 1
            expiry = heapq.heappop(self._expiries)
            if not self._is_current(expiry):
                continue
            offset = expiry[1]
            if self.deliveries[offset].is_final_delivery:
                self._dead.append(offset)
            else:
                heapq.heappush(self._ready, offset)
        return looked_at

    def release_all(self) -> None:
        """Make all messages that are not dead ready: the attempt that took them is repeated."""
        dead = set(self._dead)
        self._ready = [offset for offset in self.deliveries if offset not in dead]
        self._recalled = set(self._ready)
        self._expiries = []

    def take_ready(self, count: int) -> list[int]:
        """Remove and return at most `count` ready offsets, ascending."""
        return [heapq.heappop(self._ready) for _ in range(min(count, len(self._ready)))]

    def return_unread(self, offsets: Collection[int]) -> None:
        """Make offsets ready again that `take_ready` returned and that were not delivered."""
        for offset in offsets:
            heapq.heappush(self._ready, offset)

    def dead(self, count: int) -> list[int]:
        """Return at most `count` offsets of dead messages; `acknowledged` ends each."""
        # Ended deliveries may follow one whose letter is not durable yet.
        return list(islice((offset for offset in self._dead if offset in self.deliveries), count))

    def delivered(self, offsets: Collection[int]) -> None:
        """Add the new deliveries of these offsets, which are in the table, to the orders."""
        self._recalled.difference_update(offsets)
        for offset in offsets:
            delivery = self.deliveries[offset]
            heapq.heappush(self._expiries, (delivery.visible_at_ms, offset, delivery.pop_time_ms))
            if not self._order or offset > self._order[-1]:
                self._order.append(offset)
        limit = 2 * len(self.deliveries) + _SLACK
        if len(self._expiries) > limit:
            self._expiries = [expiry for expiry in self._expiries if self._is_current(expiry)]
            heapq.heapify(self._expiries)
        if len(self._order) > limit:
            self._order = deque(offset for offset in self._order if offset in self.deliveries)

    def acknowledged(self) -> None:
        """Remove ended deliveries from the front of the dead messages."""
        while self._dead and self._dead[0] not in self.deliveries:
            self._dead.popleft()

    def rebuild(self) -> None:
        """Rebuild all orders from the table after any other change."""
        self._order = deque(self.deliveries)
        self._expiries = [(each.visible_at_ms, offset, each.pop_time_ms) for offset, each in self.deliveries.items()]
        heapq.heapify(self._expiries)
        self._ready.clear()
        self._recalled.clear()
        self._dead.clear()

    def _is_current(self, expiry: tuple[int, int, int]) -> bool:
        """Return True if an expiry entry matches the delivery as it is now.

        A renewed delivery has another time.
        """
        visible_at_ms, offset, pop_time_ms = expiry
        delivery = self.deliveries.get(offset)
        return delivery is not None and delivery.pop_time_ms == pop_time_ms and delivery.visible_at_ms == visible_at_ms
