"""One sender at a time per queue, whether it sends on an event loop or from a thread of its own. No I/O."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class QueueTurn:
    """Held by one at a time; those who wait get it in the order of asking.

    Any thread may take and release it; who waits does so on one event loop. There is no lock: a signal handler may
    send, too, on the very thread that it has interrupted. To see that nobody has it and to take it is one step, and it
    is known who has it, so that who was interrupted anywhere can release it all the same.
    """

    __slots__ = ("_holder", "_waiting")

    def __init__(self) -> None:
        #: Who has it, under the one key.
        self._holder: dict[None, object] = {}
        self._waiting: deque[tuple[asyncio.Future[None], object]] = deque()

    def take(self, who: object) -> bool:
        """Take it if nobody holds it and nobody waits."""
        if self._waiting:
            self._call()
            return False
        return self._holder.setdefault(None, who) is who

    @property
    def is_free(self) -> bool:
        """Whether nobody has it and nobody waits."""
        return not self._holder and not self._waiting

    def has(self, who: object) -> bool:
        """Whether that one holds it."""
        return self._holder.get(None) is who

    async def wait(self, who: object) -> None:
        """Take it as soon as it is this one's turn."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append((mine, who))
        self._hand_on()
        try:
            await mine
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it has just been given
                self._waiting.remove((mine, who))
            self.release(who)
            raise

    def release(self, who: object) -> None:
        """Hand it on, if that one holds it."""
        if self._holder.get(None) is who:
            del self._holder[None]
        if self._waiting:
            self._call()

    def _call(self) -> None:
        """See that the first who waits has it if nobody else does."""
        if self._waiting:
            with contextlib.suppress(IndexError, RuntimeError):  # nobody does any more; their loop has ended
                self._waiting[0][0].get_loop().call_soon_threadsafe(self._hand_on)

    def _hand_on(self) -> None:
        """On the loop of those who wait."""
        while self._waiting:
            waiting, who = self._waiting[0]
            if not waiting.done():
                if self._holder.setdefault(None, who) is not who:
                    return
                waiting.set_result(None)
            self._waiting.popleft()
