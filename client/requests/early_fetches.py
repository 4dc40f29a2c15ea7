"""What was begun early for some queues: the bookkeeping of reading ahead, whoever reads. No I/O.

Records never change, so what was asked for early is what would be answered now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from raymq.actors.protocol import MessageQueue

#: So many queues' answers are held at most, the latest ones; each is as large as a fetch may be.
MOST_QUEUES: Final = 4

_Begun = TypeVar("_Begun")


class EarlyFetches(Generic[_Begun]):
    """By queue the fetch that was begun for it, with what it was begun for: an offset, and so many messages at most."""

    def __init__(self, give_up: Callable[[_Begun], None], is_usable: Callable[[_Begun], bool]) -> None:
        """`give_up` is called with a fetch that nobody will come for, `is_usable` before one is given to who came."""
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
        """Give up what was begun before for this queue, or for the one longest ago; `put` may follow."""
        self.forget(queue)
        if len(self._begun) >= MOST_QUEUES:
            self.forget(next(iter(self._begun)))

    def put(self, queue: MessageQueue, offset: int, max_messages: int, begun: _Begun) -> None:
        """A fetch is under way."""
        self._begun[queue] = offset, max_messages, begun

    def take(self, queue: MessageQueue, offset: int, max_messages: int) -> _Begun | None:
        """What was begun for this very fetch, now the caller's; None if nothing was. Another one is given up."""
        known = self._begun.get(queue)
        if known is None:
            return None
        if known[:2] != (offset, max_messages) or not self._is_usable(known[2]):
            self.forget(queue)
            return None
        del self._begun[queue]
        return known[2]

    def forget(self, queue: MessageQueue) -> None:
        """Give up what was begun for a queue, if anything."""
        known = self._begun.pop(queue, None)
        if known is not None:
            self._give_up(known[2])

    def clear(self) -> None:
        """Give up everything."""
        for queue in list(self._begun):
            self.forget(queue)
