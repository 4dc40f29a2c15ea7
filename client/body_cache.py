"""Cache decompressed bodies, up to a bound in bytes.

A few compressed bytes may decompress to megabytes, and a program may hold thousands of messages whose bodies it has
read. A message therefore stores its body compressed, and decompresses it when it is read. The decompressed body is kept
as long as it is among the most recent ones of the process, over all messages.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol
from weakref import ref

from raymq.client.fork_hooks import register_child_reset

#: The bound for all cached bodies of a process.
MAX_CACHE_BYTES: Final = 64 << 20
#: The overhead of a cached body in bytes, which bounds the number of empty bodies, too.
OVERHEAD_BYTES: Final = 200


class Evictable(Protocol):
    """An object with a text that it can compute again."""

    def forget(self) -> None:
        """Release the text."""


class BodyCache:
    """The texts that are kept in memory, and their total size.

    A text that was garbage-collected with its message counts until it is evicted.

    Thread-safe. A signal handler may read a body, too, even if it interrupts its own thread while that counts.
    """

    def __init__(self, most_bytes: int = MAX_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._holders: deque[tuple[ref[Evictable], int]] = deque()
        self._lock = threading.RLock()
        #: The size of all kept texts with their overhead, in bytes.
        self.bytes = 0
        register_child_reset(self, BodyCache._renew)

    def keep(self, holder: Evictable, size: int) -> None:
        """Count a holder's new text of `size` bytes, and evict the oldest texts.

        The oldest ones are evicted until the total is within the bound: `forget` of their holders is called.
        """
        entry = ref(holder), size + OVERHEAD_BYTES
        with self._lock:
            self._holders.append(entry)
            self.bytes += entry[1]
            # A signal handler that runs between two of these steps may evict some, too, or one more than necessary.
            while self.bytes > self._most_bytes and self._holders:
                oldest, evicted = self._holders.popleft()
                self.bytes -= evicted
                known = oldest()
                if known is not None:
                    known.forget()

    def _renew(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have been counting
        self.bytes = sum(size for _, size in self._holders)


body_cache: Final = BodyCache()
