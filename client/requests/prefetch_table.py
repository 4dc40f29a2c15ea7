"""Track the fetches that were started in advance, one per queue. No I/O.

Records never change, so the answer of a fetch in advance equals the answer of a fetch now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from raymq.actors.protocol import MessageQueue

#: The maximum number of queues with a fetch in advance, the latest ones; each answer is as large as a fetch may be.
MAX_PREFETCHED_QUEUES: Final = 4

_Begun = TypeVar("_Begun")


class PrefetchTable(Generic[_Begun]):
    """The fetch that was started in advance for each queue.

    Each is stored with its parameters: an offset, and a maximum number of messages.
    """

    def __init__(self, give_up: Callable[[_Begun], None], is_usable: Callable[[_Begun], bool]) -> None:
        """Create an empty table.

        `give_up` is called with a fetch that is dropped unused. `is_usable` is called before a fetch is returned.
        """
        self._give_up = give_up
        self._is_usable = is_usable
        self._begun: dict[MessageQueue, tuple[int, int, _Begun]] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._begun

    def __len__(self) -> int:
        return len(self._begun)

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter(self._begun)

    def make_room(self, queue: MessageQueue) -> None:
        """Drop the fetch of this queue, and the oldest one if the table is full.

        `put` may follow.
        """
        self.forget(queue)
        if len(self._begun) >= MAX_PREFETCHED_QUEUES:
            self.forget(next(iter(self._begun)))

    def put(self, queue: MessageQueue, offset: int, max_messages: int, begun: _Begun) -> None:
        """Add a fetch that was started."""
        self._begun[queue] = offset, max_messages, begun

    def take(self, queue: MessageQueue, offset: int, max_messages: int) -> _Begun | None:
        """Remove and return the fetch with these parameters; None if there is none.

        A fetch of the queue with other parameters, or one that is not usable, is dropped.
        """
        known = self._begun.get(queue)
        if known is None:
            return None
        if known[:2] != (offset, max_messages) or not self._is_usable(known[2]):
            self.forget(queue)
            return None
        del self._begun[queue]
        return known[2]

    def forget(self, queue: MessageQueue) -> None:
        """Drop the fetch of a queue, if any."""
        known = self._begun.pop(queue, None)
        if known is not None:
            self._give_up(known[2])

    def clear(self) -> None:
        """Drop all fetches."""
        for queue in list(self._begun):
            self.forget(queue)
