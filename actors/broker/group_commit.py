"""Group commit: many appends wait for one fdatasync, which runs on another thread and holds no lock of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from raymq.actors.protocol import SendStatus
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, WriteUnknown
from raymq.storage.store import Store

#: Where descriptors or memory are missing, a flush is tried again so soon.
_AGAIN_SECONDS = 0.05
_log = logging.getLogger(__name__)


def flush_of(store: Store) -> Callable[[], None]:
    """What brings to disk all that was appended and, where its senders wait for that, the topics that it is in.

    Somebody may have made a topic a moment ago. What is in one that a loss of power takes nobody can read.
    """
    if store.confirmed.at_once:
        return store.flush

    def flush() -> None:
        store.topic_configs.sync()  # first: what is on disk may be read
        store.flush()

    return flush


def _nobody_waits() -> object:
    """What a flush means where all may be read before it."""


class GroupCommit:
    """Made and used on one event loop. `flush` blocks and is called on a thread; it covers all appended before it."""

    def __init__(self, flush: Callable[[], None], timeout_seconds: float | None = None) -> None:
        """Without a time-out `wait` waits for as long as it takes."""
        self._flush = flush
        self._timeout_seconds = timeout_seconds
        #: Called on the loop after each flush that was done, before those that waited for it go on.
        self.on_flushed: Callable[[], object] = _nobody_waits
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait(self) -> SendStatus:
        """Return once everything appended before the call is on disk; FLUSH_DISK_TIMEOUT after the time-out.

        Raises:
            WriteUnknown: the disk failed. What was appended is in the log's memory, and on disk it may be or not.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.shield(self._begun())
        except TimeoutError:
            return SendStatus.FLUSH_DISK_TIMEOUT
        except StoreFailed as error:
            raise WriteUnknown(f"stored, but the disk failed before it was safe: {error}") from error
        return SendStatus.SEND_OK

    def request(self) -> None:
        """Have everything appended before the call brought to disk; a failure is the store's to remember."""
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
        is_told = False
        while True:
            try:
                await asyncio.to_thread(self._flush)
                break
            except StoreBusy:  # nothing was done, and what is appended is not the less stored
                await asyncio.sleep(_AGAIN_SECONDS)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - no memory for a thread, say: what is appended waits for it still
                if not is_told:
                    _log.exception("a flush has failed; it is tried again", exc_info=error)
                is_told = True
                await asyncio.sleep(_AGAIN_SECONDS)
        self.on_flushed()


def _look_at(task: asyncio.Task[None]) -> None:
    """Who waits for it is told of its failure; it may be nobody."""
    if not task.cancelled():
        task.exception()
