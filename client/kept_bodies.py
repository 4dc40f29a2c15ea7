"""Bodies that were decompressed and are kept for who looks again: as many as a bound of bytes allows.

A few compressed bytes may be megabytes of text, and a program may hold thousands of messages that it has looked at. So
what a message has as a body is what came; the text is made when somebody looks at it, and is his. It is kept besides
for as long as it is among the last ones, whichever messages they are of.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol
from weakref import ref

from raymq.client.forking import renew_in_child

#: Of all bodies of a process that are kept.
MOST_KEPT_BYTES: Final = 64 << 20
#: What a kept body costs beside its text, in bytes: so many empty ones are bounded, too.
OVERHEAD_BYTES: Final = 200


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
        self._counting = threading.Lock()
        #: Of all that is kept, and what it costs besides.
        self.bytes = 0
        renew_in_child(self, KeptBodies._renew)

    def keep(self, holder: Forgetful, size: int) -> None:
        """A holder has made a text of so many bytes; those that were made longest ago are told to forget theirs."""
        self._made.append((ref(holder), size + OVERHEAD_BYTES))
        while self._made and self._counting.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._counting.release()

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
        self._counting = threading.Lock()  # another thread of the parent may have held it
        self.bytes = sum(size for _, size in self._holders)


kept_bodies: Final = KeptBodies()
