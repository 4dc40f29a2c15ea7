"""Keep a deadline for each of very many queues. No I/O.

The cost depends on the queues that are due, not on all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from raymq.storage.tables.in_flight_messages import GroupQueue

#: How many replaced heap entries may remain, in addition to one per deadline in force.
_SLACK = 64


class DeadlineHeap:
    """One deadline per queue: the earliest that was set since the queue was last due.

    Times are ms since the epoch.
    """

    def __init__(self) -> None:
        self._at: dict[GroupQueue, int] = {}
        self._order: list[tuple[int, GroupQueue]] = []

    def set(self, queue: GroupQueue, at_ms: int) -> None:
        """Make the queue due at `at_ms` at the latest."""
        known = self._at.get(queue)
        if known is not None and known <= at_ms:
            return
        self._at[queue] = at_ms
        heapq.heappush(self._order, (at_ms, queue))
        if len(self._order) > 2 * len(self._at) + _SLACK:
            self._order = [(at, each) for each, at in self._at.items()]
            heapq.heapify(self._order)

    def due(self, now_ms: int) -> Iterator[GroupQueue]:
        """Yield the queues that are due, earliest first, and clear their deadlines."""
        while self._order and self._order[0][0] <= now_ms:
            at, queue = heapq.heappop(self._order)
            if self._at.get(queue) == at:
                del self._at[queue]
                yield queue

    def of(self, queue: GroupQueue) -> int | None:
        """Return a queue's deadline, or None if it has none."""
        return self._at.get(queue)
