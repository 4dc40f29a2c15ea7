"""How much memory the requests of all connections of a server may hold together. Decisions only, injected clock.

A request that is under way counts with its body, a frame that is still arriving with the memory that it has got, which
follows what has arrived: what a peer announces costs nothing. Frames that would go beyond the limit wait, in the
sockets of their senders. So that frames that have arrived in part never wait for each other, one of them at a time has
the turn to arrive whole; it loses its connection if it does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

#: Who has the turn has so long, and the time that what is missing takes at this speed.
_TURN_SECONDS: Final = 1.0
_TURN_BYTES_PER_SECOND: Final = 4 << 20
#: One part of so many is for connections that have nothing under way.
_SPARED_PART: Final = 5


class RequestRoom:
    """One server's, used on its loop. `clock` is monotonic, in seconds."""

    def __init__(self, limit_bytes: int, clock: Callable[[], float]) -> None:
        self._limit = limit_bytes
        self._limit_for_more = limit_bytes - limit_bytes // _SPARED_PART
        self._clock = clock
        #: Of requests under way.
        self.held_bytes = 0
        #: Of frames that have begun and not ended.
        self.arriving_bytes = 0
        self._memory: dict[Hashable, int] = {}
        self._turn: Hashable | None = None
        self._turn_ends = 0.0

    def is_there(self, *, for_more: bool = False) -> bool:
        """Whether the requests under way are below the limit: small ones are served then.

        Args:
            for_more: of a connection that has some under way. It goes without the last part of the room, so that a
                few of them cannot shut out everybody else.
        """
        return self.held_bytes <= (self._limit_for_more if for_more else self._limit)

    def hold(self, count: int) -> None:
        """Count the bytes of a request that is under way; `give_back` is the reverse."""
        self.held_bytes += count

    def give_back(self, count: int) -> None:
        """A request that was under way is answered."""
        self.held_bytes -= count

    def arriving(self, who: Hashable, has: int, needs: int, announced: int, *, for_more: bool = False) -> bool:
        """A large frame is arriving; whether it may go on, and the connection be read from.

        Args:
            has: the memory that it has.
            needs: the memory that it needs to go on; it has it from now on where it may.
            announced: the frame's whole length.
            for_more: as in `is_there`.
        """
        self._count(who, has)
        free = (self._limit_for_more if for_more else self._limit) - self.held_bytes
        if self._turn != who and self.arriving_bytes + needs - has > free:
            if self._turn is not None or (self.held_bytes and announced > free):
                return False
            self._turn = who
            self._turn_ends = self._clock() + _TURN_SECONDS + (announced - has) / _TURN_BYTES_PER_SECOND
        self._count(who, needs)
        return True

    def _count(self, who: Hashable, memory: int) -> None:
        self.arriving_bytes += memory - self._memory.get(who, 0)
        self._memory[who] = memory

    def ended(self, who: Hashable) -> None:
        """The frame has arrived whole, or its connection is gone."""
        self.arriving_bytes -= self._memory.pop(who, 0)
        if self._turn == who:
            self._turn = None

    def late(self) -> Hashable | None:
        """Who has had the turn for too long."""
        return self._turn if self._turn is not None and self._clock() > self._turn_ends else None

    def end_turn(self) -> None:
        """Somebody else may have the turn."""
        self._turn = None

    def validate(self) -> None:
        """What is counted is what was told."""
        assert self.held_bytes >= 0
        assert self.arriving_bytes == sum(self._memory.values())
        assert self._turn is None or self._turn in self._memory
