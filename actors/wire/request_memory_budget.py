"""The memory budget that the requests of all connections of a server share.

This file only decides; it does no I/O, and its clock is injected.

A request under way counts with its body. A frame that is still arriving counts with the memory allocated for it, which
follows the bytes that have arrived: a length that a peer only announces costs nothing. Frames that would exceed the
limit wait in the sockets of their senders. So that partly received frames cannot block each other forever, one of them
at a time has the turn: it may continue although the other partly received frames use up the limit. Its connection is
closed if the frame does not complete in time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

#: The turn lasts so long, plus the time that the missing bytes take at the speed below.
_TURN_SECONDS: Final = 1.0
_TURN_BYTES_PER_SECOND: Final = 4 << 20
#: One part in so many of the budget is reserved for connections that have no request under way.
_SPARED_PART: Final = 5


class RequestMemoryBudget:
    """The budget of one server, used on its loop. `clock` returns monotonic seconds."""

    def __init__(self, limit_bytes: int, clock: Callable[[], float]) -> None:
        self._limit = limit_bytes
        self._limit_for_more = limit_bytes - limit_bytes // _SPARED_PART
        self._clock = clock
        #: Bytes of requests under way.
        self.held_bytes = 0
        #: Memory of frames that have arrived in part.
        self.arriving_bytes = 0
        self._memory: dict[Hashable, int] = {}
        self._turn: Hashable | None = None
        self._turn_ends = 0.0

    def has_room(self, *, for_more: bool = False) -> bool:
        """Return True if the requests under way are below the limit.

        Small requests may be served then.

        Args:
            for_more: the connection already has requests under way. It may not use the reserved part of the budget, so
                that a few connections cannot lock out all others.
        """
        return self.held_bytes <= (self._limit_for_more if for_more else self._limit)

    def hold(self, count: int) -> None:
        """Count the bytes of a request that is under way; `release_memory` is the reverse."""
        self.held_bytes += count

    def release_memory(self, count: int) -> None:
        """Release `count` bytes of a request that was answered."""
        self.held_bytes -= count

    def arriving(self, owner: Hashable, has: int, needs: int, announced: int, *, for_more: bool = False) -> bool:
        """Return True if a large frame may continue to arrive.

        The connection of the frame may be read from only in that case.

        Args:
            has: the memory that the frame has.
            needs: the memory that it needs to continue; it is counted from now on if the frame may continue.
            announced: the frame's whole length.
            for_more: as in `has_room`.
        """
        self._count(owner, has)
        free = (self._limit_for_more if for_more else self._limit) - self.held_bytes
        if self._turn != owner and self.arriving_bytes + needs - has > free:
            if self._turn is not None or (self.held_bytes and announced > free):
                return False
            self._turn = owner
            self._turn_ends = self._clock() + _TURN_SECONDS + (announced - has) / _TURN_BYTES_PER_SECOND
        self._count(owner, needs)
        return True

    def _count(self, owner: Hashable, memory: int) -> None:
        self.arriving_bytes += memory - self._memory.get(owner, 0)
        self._memory[owner] = memory

    def ended(self, owner: Hashable) -> None:
        """Release the memory of a frame that has arrived completely or whose connection ended."""
        self.arriving_bytes -= self._memory.pop(owner, 0)
        if self._turn == owner:
            self._turn = None

    def late(self) -> Hashable | None:
        """Return the holder of the turn if it has exceeded its time, else None."""
        return self._turn if self._turn is not None and self._clock() > self._turn_ends else None

    def end_turn(self) -> None:
        """End the current turn, so that another frame may get it."""
        self._turn = None
