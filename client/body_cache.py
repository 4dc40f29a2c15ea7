"""Cache decompressed bodies, up to a bound in bytes.

A few compressed bytes may decompress to megabytes, and a program may hold thousands of messages whose bodies it has
read. A message therefore stores its body compressed, and decompresses it when it is read. The decompressed body is kept
as long as it is among the most recent ones of the process, over all messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol
from weakref import ref

from raymq.client.fork_hooks import register_child_reset

#: The bound for all cached bodies of a process.
MAX_CACHE_BYTES: Final = 64 << 20
#: The overhead of a cached body in bytes, which bounds the number of empty bodies, too.
OVERHEAD_BYTES: Final = 200
_COUNTS: Final = "counts"


class Evictable(Protocol):
    """An object with a text that it can compute again."""

    def forget(self) -> None:
        """Release the text."""


class BodyCache:
    """The texts that are kept in memory, and their total size.

    A text that was garbage-collected with its message counts until it is evicted.

    Thread-safe and non-blocking: if another thread is counting, a caller leaves its new text to that thread. A signal
    handler may read a body, too, even if it interrupts its own thread while that counts.
    """

    def __init__(self, most_bytes: int = MAX_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._holders: deque[tuple[ref[Evictable], int]] = deque()
        self._made: deque[tuple[ref[Evictable], int]] = deque()
        #: The call that counts now: its token, which `setdefault` stores in one atomic step.
        self._turn: dict[str, object] = {}
        #: The size of all kept texts with their overhead, in bytes.
        self.bytes = 0
        register_child_reset(self, BodyCache._renew)

    def keep(self, holder: Evictable, size: int) -> None:
        """Count a holder's new text of `size` bytes, and evict the oldest texts.

        The oldest ones are evicted until the total is within the bound: `forget` of their holders is called.
        """
        self._made.append((ref(holder), size + OVERHEAD_BYTES))
        mine = object()
        while self._made:
            turn = self._turn
            try:
                if turn.setdefault(_COUNTS, mine) is not mine:
                    return
                self._count()
            finally:
                # Ctrl-C may interrupt at the end of any call above, also of the one that takes the turn. From here on
                # nothing is called, so nothing can interrupt.
                if _COUNTS in turn and turn[_COUNTS] is mine:
                    self._turn = {}

    def _count(self) -> None:
        while self._made:
            entry = self._made.popleft()
            self._holders.append(entry)
            self.bytes += entry[1]
            while self.bytes > self._most_bytes:
                oldest, size = self._holders.popleft()
                self.bytes -= size
                known = oldest()
                if known is not None:
                    known.forget()

    def _renew(self) -> None:
        self._turn = {}  # another thread of the parent may have been counting
        self.bytes = sum(size for _, size in self._holders)


body_cache: Final = BodyCache()
