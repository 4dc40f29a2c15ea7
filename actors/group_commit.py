"""Group commit: many appends wait for one fdatasync, which runs on another thread and holds no lock of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raymq.actors.protocol import SendStatus


class GroupCommit:
    """Made and used on one event loop. `flush` blocks and is called on a thread; it covers all appended before it."""

    def __init__(self, flush: Callable[[], None], timeout_seconds: float) -> None:
        self._flush = flush
        self._timeout_seconds = timeout_seconds
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait(self) -> SendStatus:
        """Return once everything appended before the call is on disk; FLUSH_DISK_TIMEOUT after the time-out.

        Raises:
            StoreFailed: the disk refused; the store takes no more writes.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._after(self._running))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.shield(self._next)
        except TimeoutError:
            return SendStatus.FLUSH_DISK_TIMEOUT
        return SendStatus.SEND_OK

    async def _after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        await asyncio.to_thread(self._flush)
