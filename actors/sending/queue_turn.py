"""One sender at a time per queue, whether it sends on an event loop or from a thread of its own. No I/O."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque


class QueueTurn:
    """Held by one at a time; those who wait get it in the order of asking. Thread-safe; `wait` is for event loops."""

    __slots__ = ("_held", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take it if nobody holds it and nobody waits."""
        with self._lock:
            if self._held:
                return False
            self._held = True
            return True

    async def wait(self) -> None:
        """Take it as soon as it is this one's turn."""
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            with self._lock:
                waits = mine in self._waiting
                if waits:
                    self._waiting.remove(mine)
            if not waits:  # it has just been given
                self.release()
            raise

    def release(self) -> None:
        """Hand it on. Any thread."""
        with self._lock:
            if not self._waiting:
                self._held = False
                return
            following = self._waiting.popleft()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who waited
            following.get_loop().call_soon_threadsafe(_give, following)


def _give(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
