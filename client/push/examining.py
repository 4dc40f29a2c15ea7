"""What becomes of a queue that cannot be read from where it should be: left alone, moved, given up, or read singly.

Runs on the connection's event loop. While something is found out about a queue nothing more of it is fetched; the
others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from raymq.actors.errors import OffsetOutOfRange, OffsetReset, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervision import Supervisor
from raymq.actors.wire.commands.fetch import MAX_ANSWER_BYTES
from raymq.client.push.fetching import Fetcher, Fetching
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.received import received_singly
from raymq.client.requests.fetching import fetch
from raymq.client.requests.offsets import OffsetRequests
from raymq.storage.errors import StoreCorrupt

_log = logging.getLogger(__name__)


class QueueOwner(Protocol):
    """The consumer whose queues these are."""

    def move(self, process: ProcessQueue, offset: int, incarnation: int | None) -> None:
        """Go on at `offset`, in that incarnation of the topic (None: the same)."""

    def gone(self, process: ProcessQueue, error: Exception) -> None:
        """Its broker does not have the queue (any more)."""

    def pass_over(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """The message there cannot be read."""


@dataclass(eq=False)
class Examining:
    """The queues of one consumer that are in trouble."""

    _who: Fetcher
    _fetching: Fetching
    _offsets: OffsetRequests
    _owner: QueueOwner
    _supervisor: Supervisor
    _under_way: dict[ProcessQueue, asyncio.Task[None]] = field(default_factory=dict)

    def unreadable(self, process: ProcessQueue, error: BaseException) -> None:
        """A queue cannot be read from where it should be, or what came of it cannot be taken."""
        queue = process.queue
        if process.dropped:
            return
        if isinstance(error, OffsetReset):
            self._heed(process, error)
        elif isinstance(error, OffsetOutOfRange):
            self._examine(process, lambda: self._find_place(process, error))
        elif isinstance(error, TopicNotFound | QueueNotFound):
            self._owner.gone(process, error)
        elif isinstance(error, RayMQError) and not isinstance(error, StoreCorrupt):
            self._fetching.leave_alone(queue, error)
        else:
            if not isinstance(error, StoreCorrupt):
                self._supervisor.report("fetch of a queue", error)
            self._examine(process, lambda: self._read_singly(process))
        self._fetching.anew(queue)  # what is still to come of this fetch is not what has to come next

    def stop(self) -> None:
        """Find out nothing any more."""
        for task in self._under_way.values():
            task.cancel()

    def _examine(self, process: ProcessQueue, find_out: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Fetch nothing more of a queue until something was found out; the others go on meanwhile."""
        if process in self._under_way:
            return

        async def until_known() -> None:
            while not process.dropped:
                try:
                    await find_out()
                except (TopicNotFound, QueueNotFound) as error:
                    self._owner.gone(process, error)
                except OffsetReset as reset:
                    self._heed(process, reset)
                except RayMQError as error:
                    await asyncio.sleep(self._fetching.leave_alone(process.queue, error))
                else:
                    return

        def known(_: asyncio.Task[None]) -> None:
            self._under_way.pop(process, None)
            self._fetching.held.discard(process)
            self._fetching.anew(process.queue)

        self._fetching.held.add(process)
        self._under_way[process] = task = self._supervisor.keep("examination of a queue", until_known)
        task.add_done_callback(known)

    async def _find_place(self, process: ProcessQueue, error: OffsetOutOfRange) -> None:
        """Where to go on in a queue that does not reach to where the next fetch should begin.

        Below it: at its minimum. Beyond it, it is not the queue that it was (a topic that was deleted and made anew, a
        broker that lost its newest messages): where the group is by the broker's book, else at the minimum. Never at
        its end: what was stored meanwhile may be new.
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
        """Read on where something cannot be read, record by record; pass over exactly what is damaged."""
        queue = process.queue
        limits = (max(1, process.room), MAX_ANSWER_BYTES, 0.0)
        who = self._who
        wanted = [self._fetching.wanted(process)]
        session = f"{who.session}:{queue}"
        parts = await fetch(*(who.mq, queue.broker, session, wanted, *limits, who.group, who.client_id), check_crc=True)
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
        messages, sizes, bad = received_singly(part, queue)
        for offset, error in bad:
            self._owner.pass_over(queue, offset, error)
        self._fetching.deliver(process, messages, sizes, part.next_offset)

    def _heed(self, process: ProcessQueue, reset: OffsetReset) -> None:
        """A fetch was sent elsewhere. Without a group it is because the topic was made anew, or because of what the
        broker's log has lost: then what is not done of the rest comes again, too.
        """
        lost = self._who.group is None and reset.incarnation is None
        offset = min(reset.offset, process.commit_offset) if lost else reset.offset
        self._owner.move(process, offset, reset.incarnation)
