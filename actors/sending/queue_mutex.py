"""A mutex per queue for senders on an event loop and on other threads.

The module performs no I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class QueueMutex:
    """A fair mutex, granted in the order of the requests.

    Any thread may take and release it; waiting is possible on one event loop only. It uses no lock, because a signal
    handler may send on the very thread that it has interrupted. To check that the mutex is free and to take it is one
    atomic step. The mutex stores its holder, so that code that was interrupted anywhere can still release it.
    """

    __slots__ = ("_holder", "_waiting")

    def __init__(self) -> None:
        #: The holder, under the single key None.
        self._holder: dict[None, object] = {}
        self._waiting: deque[tuple[asyncio.Future[None], object]] = deque()

    def take(self, who: object) -> bool:
        """Take the mutex if it is free and has no waiter; return True if taken."""
        if self._waiting:
            self._call()
            return False
        return self._holder.setdefault(None, who) is who

    @property
    def is_free(self) -> bool:
        """Return True if the mutex has no holder and no waiter."""
        return not self._holder and not self._waiting

    def has(self, who: object) -> bool:
        """Return True if `who` holds the mutex."""
        return self._holder.get(None) is who

    async def wait(self, who: object) -> None:
        """Wait for the mutex in turn, and take it."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append((mine, who))
        self._hand_on()
        try:
            await mine
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it was granted just now, and is released below
                self._waiting.remove((mine, who))
            self.release(who)
            raise

    def release(self, who: object) -> None:
        """Release the mutex, if `who` holds it, and pass it on."""
        if self._holder.get(None) is who:
            del self._holder[None]
        if self._waiting:
            self._call()

    def _call(self) -> None:
        """Schedule the handover to the first waiter on its event loop."""
        if self._waiting:
            with contextlib.suppress(IndexError, RuntimeError):  # no waiter is left, or its loop has closed
                self._waiting[0][0].get_loop().call_soon_threadsafe(self._hand_on)

    def _hand_on(self) -> None:
        """Grant the free mutex to the first waiter, on the event loop of the waiters."""
        while self._waiting:
            waiting, who = self._waiting[0]
            if not waiting.done():
                if self._holder.setdefault(None, who) is not who:
                    return
                waiting.set_result(None)
            self._waiting.popleft()
