"""One queue as one group pops it: which messages are with consumers, which may be taken again, which are dead. No I/O.

The deliveries themselves are the store's durable table; this adds the orders in which decisions look at them. Each
order may hold entries of deliveries that are over: they are recognised when they come up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from itertools import islice

from raymq.storage.tables.in_flight import GroupQueue, Lent, Outstanding

#: How many entries of deliveries that are over an order may hold, besides as many as there are of living ones.
_SLACK = 64


class LentQueue:
    """A queue of which something is out. Times are milliseconds since the epoch."""

    def __init__(self, queue: GroupQueue, outstanding: Outstanding) -> None:
        self.queue = queue
        self._outstanding = outstanding
        #: Whether it was popped in order last, and by which attempt.
        self.ordered = False
        self.attempt_id: str | None = None
        self._order: deque[int] = deque()
        self._expiries: list[tuple[int, int, int]] = []
        self._ready: list[int] = []
        #: Of those what no time has ended: their handles are void.
        self._recalled: set[int] = set()
        self._dead: deque[int] = deque()
        self.cut()

    @property
    def next_offset(self) -> int:
        """The first message that nobody was given yet."""
        return self._outstanding.next_offset

    @property
    def deliveries(self) -> dict[int, Lent]:
        """All that is out, ready again, or dead and not moved yet."""
        return self._outstanding.deliveries

    @property
    def is_blocked(self) -> bool:
        """Whether an ordered consumer has to wait: something is with a consumer, or on its way to the dead letters."""
        return len(self.deliveries) > len(self._ready)

    @property
    def has_ready(self) -> bool:
        """Whether something may be taken again."""
        return bool(self._ready)

    @property
    def ready_count(self) -> int:
        """How many may be taken again."""
        return len(self._ready)

    @property
    def has_dead(self) -> bool:
        """Whether something is to be moved to the dead letters."""
        return bool(self._dead)

    @property
    def next_expiry_ms(self) -> int | None:
        """When time may run out next; None: nothing is with a consumer."""
        return self._expiries[0][0] if self._expiries else None

    def floor(self, without: Collection[int] = ()) -> int:
        """The group's offset: the oldest that is out, those of `without` left aside, else the next new one."""
        while self._order and self._order[0] not in self.deliveries:
            self._order.popleft()
        return next((o for o in self._order if o in self.deliveries and o not in without), self.next_offset)

    def alive(self, offset: int, pop_time_ms: int, now_ms: int) -> Lent | None:
        """The delivery that a handle names, if it still is the consumer's."""
        delivery = self.deliveries.get(offset)
        if delivery is None or delivery.pop_time_ms != pop_time_ms or delivery.visible_at_ms <= now_ms:
            return None
        return None if offset in self._recalled else delivery

    def advance(self, now_ms: int, most: int) -> int:
        """Take back what ran out of time, or the first `most` of that; how many of the order it has looked at."""
        looked_at = 0
        while looked_at < most and self._expiries and self._expiries[0][0] <= now_ms:
            looked_at += 1
            expiry = heapq.heappop(self._expiries)
            if not self._is_current(expiry):
                continue
            offset = expiry[1]
            if self.deliveries[offset].is_last:
                self._dead.append(offset)
            else:
                heapq.heappush(self._ready, offset)
        return looked_at

    def recall(self) -> None:
        """Everything that is not dead may be taken again: the attempt that took it asks once more."""
        dead = set(self._dead)
        self._ready = [offset for offset in self.deliveries if offset not in dead]
        self._recalled = set(self._ready)
        self._expiries = []

    def take_ready(self, count: int) -> list[int]:
        """At most `count` offsets that may be taken again, ascending; they are no longer ready."""
        return [heapq.heappop(self._ready) for _ in range(min(count, len(self._ready)))]

    def give_back(self, offsets: Collection[int]) -> None:
        """What was taken from the ready ones and could not be delivered is ready again."""
        for offset in offsets:
            heapq.heappush(self._ready, offset)

    def dead(self, count: int) -> list[int]:
        """At most `count` offsets that are to be moved to the dead letters; `acknowledged` ends each."""
        # One whose letter is not confirmed yet may have others behind it that have ended.
        return list(islice((offset for offset in self._dead if offset in self.deliveries), count))

    def delivered(self, offsets: Collection[int]) -> None:
        """The table has new deliveries of these."""
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
        """The table has fewer deliveries."""
        while self._dead and self._dead[0] not in self.deliveries:
            self._dead.popleft()

    def cut(self) -> None:
        """The table has changed otherwise: look at all of it again."""
        self._order = deque(self.deliveries)
        self._expiries = [(each.visible_at_ms, offset, each.pop_time_ms) for offset, each in self.deliveries.items()]
        heapq.heapify(self._expiries)
        self._ready.clear()
        self._recalled.clear()
        self._dead.clear()

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        living = set(self.deliveries)
        assert list(self.deliveries) == sorted(self.deliveries)
        assert all(offset < self.next_offset for offset in living)
        assert living <= set(self._order)
        assert len(set(self._ready)) == len(self._ready)
        assert living.issuperset(self._ready)
        timed = {expiry[1] for expiry in self._expiries if self._is_current(expiry)}
        assert {*timed, *self._ready, *(o for o in self._dead if o in living)} == living, "every delivery ends some day"

    def _is_current(self, expiry: tuple[int, int, int]) -> bool:
        """Whether an entry of the expiries names a delivery as it is now: one that was renewed has another time."""
        visible_at_ms, offset, pop_time_ms = expiry
        delivery = self.deliveries.get(offset)
        return delivery is not None and delivery.pop_time_ms == pop_time_ms and delivery.visible_at_ms == visible_at_ms
