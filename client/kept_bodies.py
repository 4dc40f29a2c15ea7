"""Bodies that were decompressed and are kept for who looks again: as many as a bound of bytes allows.

A few compressed bytes may be megabytes of text, and a program may hold thousands of messages that it has looked at. So
what a message has as a body is what came; the text is made when somebody looks at it, and is his. It is kept besides
for as long as it is among the last ones, whichever messages they are of.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol
from weakref import ref

from raymq.client.forking import renew_in_child

#: Of all bodies of a process that are kept.
MOST_KEPT_BYTES: Final = 64 << 20
#: What a kept body costs beside its text, in bytes: so many empty ones are bounded, too.
OVERHEAD_BYTES: Final = 200
_COUNTS: Final = "counts"


class Forgetful(Protocol):
    """What holds a text that can be made again."""

    def forget(self) -> None:
        """Let it go."""


class KeptBodies:
    """Which texts are kept. One that is gone with its message counts until its turn comes.

    Thread-safe, and nobody waits: who comes while another counts leaves it to him what he has made. So a signal handler
    may look at a body, too, also where it interrupts its own thread while that counts.
    """

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._holders: deque[tuple[ref[Forgetful], int]] = deque()
        self._made: deque[tuple[ref[Forgetful], int]] = deque()
        #: Whose turn it is to count: a token of that call, which a dictionary takes from the first one in one step.
        self._turn: dict[str, object] = {}
        #: Of all that is kept, and what it costs besides.
        self.bytes = 0
        renew_in_child(self, KeptBodies._renew)

    def keep(self, holder: Forgetful, size: int) -> None:
        """A holder has made a text of so many bytes; those that were made longest ago are told to forget theirs."""
        self._made.append((ref(holder), size + OVERHEAD_BYTES))
        mine = object()
        while self._made:
            turn = self._turn
            try:
                if turn.setdefault(_COUNTS, mine) is not mine:
                    return
                self._count()
            finally:
                # Ctrl-C may come with the end of any call above, so also with the one that takes the turn. From here
                # on nothing is called, and so nothing comes between.
                if _COUNTS in turn and turn[_COUNTS] is mine:
                    self._turn = {}

    def _count(self) -> None:
        while self._made:
            made = self._made.popleft()
            self._holders.append(made)
            self.bytes += made[1]
            while self.bytes > self._most_bytes:
                oldest, gone = self._holders.popleft()
                self.bytes -= gone
                known = oldest()
                if known is not None:
                    known.forget()

    def _renew(self) -> None:
        self._turn = {}  # another thread of the parent may have had it
        self.bytes = sum(size for _, size in self._holders)


kept_bodies: Final = KeptBodies()
