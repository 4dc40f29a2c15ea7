"""When to look at which of very many queues: it costs what is looked at, not what is not. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from raymq.storage.tables.in_flight import GroupQueue

#: So many alarms that were replaced by earlier ones may be kept, besides as many as there are of others.
_SLACK = 64


class Alarms:
    """One time for each queue, the earliest that it was given since it came up last. Times are ms since the epoch."""

    def __init__(self) -> None:
        self._at: dict[GroupQueue, int] = {}
        self._order: list[tuple[int, GroupQueue]] = []

    def set(self, queue: GroupQueue, at_ms: int) -> None:
        """The queue comes up at that time at the latest."""
        known = self._at.get(queue)
        if known is not None and known <= at_ms:
            return
        self._at[queue] = at_ms
        heapq.heappush(self._order, (at_ms, queue))
        if len(self._order) > 2 * len(self._at) + _SLACK:
            self._order = [(at, each) for each, at in self._at.items()]
            heapq.heapify(self._order)

    def due(self, now_ms: int) -> Iterator[GroupQueue]:
        """The queues whose time has come, the earliest first; each has no time from then on."""
        while self._order and self._order[0][0] <= now_ms:
            at, queue = heapq.heappop(self._order)
            if self._at.get(queue) == at:
                del self._at[queue]
                yield queue

    def of(self, queue: GroupQueue) -> int | None:
        """When a queue comes up; None: it has no time."""
        return self._at.get(queue)
