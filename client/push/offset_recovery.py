"""Recover queues that cannot be read at the next offset.

A queue is backed off, moved, released, or read record by record. This runs on the connection's event loop. While a
queue is examined, nothing more of it is fetched. Other queues go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from raymq.actors.errors import OffsetOutOfRange, OffsetReset, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervisor import Supervisor
from raymq.actors.wire.commands.fetch_commands import MAX_ANSWER_BYTES
from raymq.client.message_decoder import decode_each
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.queue_fetcher import FetchIdentity, QueueFetcher
from raymq.client.requests.fetch_request import fetch
from raymq.client.requests.offset_requests import OffsetRequests
from raymq.storage.errors import StoreCorrupt

_log = logging.getLogger(__name__)


class QueueOwner(Protocol):
    """The consumer that owns the queues."""

    def move(self, process: ProcessQueue, offset: int, incarnation: int | None) -> None:
        """Continue at `offset`, in that incarnation of the topic (None: the same)."""

    def gone(self, process: ProcessQueue, error: Exception) -> None:
        """Release a queue that its broker does not have, or no longer has."""

    def pass_over(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """Skip a message that cannot be read."""


@dataclass(eq=False)
class OffsetRecovery:
    """The recovery of one consumer's queues that cannot be read."""

    _who: FetchIdentity
    _fetcher: QueueFetcher
    _offsets: OffsetRequests
    _owner: QueueOwner
    _supervisor: Supervisor
    _under_way: dict[ProcessQueue, asyncio.Task[None]] = field(default_factory=dict)

    def unreadable(self, process: ProcessQueue, error: BaseException) -> None:
        """Start the recovery of a queue whose fetch or messages had an error."""
        queue = process.queue
        if process.dropped:
            return
        if isinstance(error, OffsetReset):
            self._apply_reset(process, error)
        elif isinstance(error, OffsetOutOfRange):
            self._examine(process, lambda: self._find_place(process, error))
        elif isinstance(error, TopicNotFound | QueueNotFound):
            self._owner.gone(process, error)
        elif isinstance(error, RayMQError) and not isinstance(error, StoreCorrupt):
            self._fetcher.back_off(queue, error)
        else:
            if not isinstance(error, StoreCorrupt):
                self._supervisor.report("fetch of a queue", error)
            self._examine(process, lambda: self._read_singly(process))
        self._fetcher.restart_fetch(queue)  # the rest of this fetch would not continue at the right offset

    def stop(self) -> None:
        """Cancel all examinations."""
        for task in self._under_way.values():
            task.cancel()

    def _examine(self, process: ProcessQueue, find_out: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Suspend the fetches of a queue until `find_out` has succeeded. Other queues go on."""
        if process in self._under_way:
            return

        async def until_known() -> None:
            while not process.dropped:
                try:
                    await find_out()
                except (TopicNotFound, QueueNotFound) as error:
                    self._owner.gone(process, error)
                except OffsetReset as reset:
                    self._apply_reset(process, reset)
                except RayMQError as error:
                    await asyncio.sleep(self._fetcher.back_off(process.queue, error))
                else:
                    return

        def known(_: asyncio.Task[None]) -> None:
            self._under_way.pop(process, None)
            self._fetcher.suspended.discard(process)
            self._fetcher.restart_fetch(process.queue)

        self._fetcher.suspended.add(process)
        self._under_way[process] = task = self._supervisor.keep("examination of a queue", until_known)
        task.add_done_callback(known)

    async def _find_place(self, process: ProcessQueue, error: OffsetOutOfRange) -> None:
        """Move a queue whose offsets do not include the next offset to fetch.

        If the next offset is below the queue's minimum, continue at the minimum. If it is above the maximum, the queue
        is not the one that was read: its topic was deleted and recreated, or its broker lost the newest messages. Then
        continue at the group's committed offset if it is within the queue, else at the minimum. Never continue at the
        maximum, since the messages that were stored meanwhile may be new.
        """
        low, high = error.min_offset, error.max_offset
        _log.warning("%s: offset %d is outside %d..%d", process.queue, process.next_offset, low, high)
        if process.next_offset < low:
            process.next_offset = low
            return
        place = await self._offsets.committed(process.queue) if self._who.group is not None else None
        committed, incarnation = (low, process.incarnation) if place is None else place
        if not process.dropped:
            self._owner.move(process, committed if low <= committed <= high else low, incarnation)

    async def _read_singly(self, process: ProcessQueue) -> None:
        """Read on record by record, and skip exactly the damaged records."""
        queue = process.queue
        limits = (max(1, process.room), MAX_ANSWER_BYTES, 0.0)
        identity = self._who
        specs = [self._fetcher.wanted(process)]
        session = f"{identity.session}:{queue}"
        parts = await fetch(
            *(identity.mq, queue.broker, session, specs, *limits, identity.group, identity.client_id), check_crc=True
        )
        if process.dropped or not parts:
            return
        part = parts[0]
        if isinstance(part.error, StoreCorrupt):
            offset = process.next_offset if part.error.queue_offset is None else part.error.queue_offset
            self._owner.pass_over(queue, offset, part.error)
            process.next_offset = max(process.next_offset, offset + 1)
            return
        if part.error is not None:
            raise part.error
        messages, sizes, bad = decode_each(part, queue)
        for offset, error in bad:
            self._owner.pass_over(queue, offset, error)
        self._fetcher.deliver(process, messages, sizes, part.next_offset)

    def _apply_reset(self, process: ProcessQueue, reset: OffsetReset) -> None:
        """Move a queue as a reset of the broker requires.

        If there is no group, the reason is that the topic was recreated, or that the broker's log lost messages. In the
        second case, unfinished messages before the offset are fetched again, too.
        """
        lost = self._who.group is None and reset.incarnation is None
        offset = min(reset.offset, process.commit_offset) if lost else reset.offset
        self._owner.move(process, offset, reset.incarnation)
