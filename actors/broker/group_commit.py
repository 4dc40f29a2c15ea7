"""Group commit: many appends wait for one fdatasync.

It runs on another thread and holds no lock of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Self

from raymq.actors.protocol import SendStatus
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, WriteUnknown
from raymq.storage.store import Store

#: Delay before a flush is retried that failed for lack of descriptors or memory.
_AGAIN_SECONDS = 0.05
#: An append that is not on disk after this time is answered with FLUSH_DISK_TIMEOUT (RocketMQ's syncFlushTimeout).
_SYNC_FLUSH_SECONDS: Final = 5.0
_log = logging.getLogger(__name__)


def make_flush(store: Store) -> Callable[[], None]:
    """Return the function that brings all appended data to disk.

    If senders wait for the flush, the function also syncs the topic table: a topic may have been created just before,
    and the messages of a topic that is lost in a power failure cannot be read.
    """
    if store.confirmed.is_immediate:
        return store.flush

    def flush() -> None:
        store.topic_configs.sync()  # first, because messages on disk may be read at once
        store.flush()

    return flush


def _no_listener() -> object:
    """Do nothing: messages may be read before a flush."""


class GroupCommit:
    """A group commit, created and used on one event loop.

    `flush` blocks and runs on another thread; it covers all data appended before it.
    """

    def __init__(self, flush: Callable[[], None], timeout_seconds: float | None = None) -> None:
        """Create a group commit; without a time-out `wait` waits without limit."""
        self._flush = flush
        self._timeout_seconds = timeout_seconds
        #: Called on the loop after each successful flush, before the waiting appends continue.
        self.on_flushed: Callable[[], object] = _no_listener
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    @classmethod
    def of_log(cls, store: Store) -> Self:
        """Return the group commit of a store's appends."""
        return cls(make_flush(store), _SYNC_FLUSH_SECONDS)

    async def wait(self) -> SendStatus:
        """Wait until all data appended before the call are on disk.

        Return SEND_OK, or FLUSH_DISK_TIMEOUT after the time-out.

        Raises:
            WriteUnknown: the disk failed. The data are in the log's memory; whether they are on disk is unknown.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.shield(self._begun())
        except TimeoutError:
            return SendStatus.FLUSH_DISK_TIMEOUT
        except StoreFailed as error:
            raise WriteUnknown(f"stored, but the disk failed before the data were flushed: {error}") from error
        return SendStatus.SEND_OK

    def request(self) -> None:
        """Start a flush of all data appended before the call.

        The store records a failure.
        """
        self._begun()

    def _begun(self) -> asyncio.Task[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._after(self._running))
            self._next.add_done_callback(_look_at)
        return self._next

    async def _after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        is_logged = False
        while True:
            try:
                await asyncio.to_thread(self._flush)
                break
            except StoreBusy:  # nothing was flushed, and the appended data are still stored
                await asyncio.sleep(_AGAIN_SECONDS)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - such as no memory for a thread: the appended data still wait
                if not is_logged:
                    _log.exception("a flush has failed; it is retried", exc_info=error)
                is_logged = True
                await asyncio.sleep(_AGAIN_SECONDS)
        self.on_flushed()


def _look_at(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a flush, so that asyncio does not report it as lost.

    Callers that wait for the flush get the exception; there may be none.
    """
    if not task.cancelled():
        task.exception()
