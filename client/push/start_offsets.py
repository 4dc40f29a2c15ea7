"""Find where a group starts in queues without a committed offset.

This runs on the connection's event loop. `ConsumeFrom.LAST` means the end of the queues when the group starts. So the
first member that starts commits the end of all queues of the topic, also for other and later members. A queue that has
no offset later is new, or on a broker that was added or has come back. The group has not seen its messages, so it
starts at the minimum. The retry topic's queue always starts at the minimum, since its messages failed in this group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from raymq.actors.errors import RayMQError
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.protocol import MessageQueue
from raymq.client.requests.offset_requests import ConsumeFrom

#: How long a member that starts at the same time is given to commit the start offsets of the other queues.
_OTHERS_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)

#: An offset, and the incarnation of the topic to which it applies.
StartOffset = tuple[int, int]


class OffsetClient(Protocol):
    """A group's offsets at its brokers, as `OffsetRequests` provides them."""

    async def committed(self, queue: MessageQueue) -> StartOffset | None:
        """Return the committed offset, or None if there is none."""

    async def first(self, queue: MessageQueue, rule: ConsumeFrom, timestamp: float | None) -> StartOffset:
        """Return the offset at which `rule` starts in the queue."""

    async def begin(self, queue: MessageQueue, place: StartOffset) -> StartOffset:
        """Commit a start offset, unless another member was faster.

        Return the start offset that is in force.
        """


class StartOffsets:
    """The start positions of one consumer.

    Args:
        offsets: the offsets of its group.
        rule, timestamp: the program's setting (`ConsumeFrom`, and seconds since 1970).
        clustering: whether the brokers keep the group's offsets. If not, each member starts on its own.
    """

    def __init__(self, offsets: OffsetClient, rule: ConsumeFrom, timestamp: float | None, *, clustering: bool) -> None:
        self._offsets = offsets
        self._rule = rule
        self._timestamp = timestamp
        self._clustering = clustering
        #: The ends of the queues at the start, for a member that starts on its own.
        self._ends: dict[MessageQueue, StartOffset] = {}

    async def fix(self, queues: Iterable[MessageQueue], awaited: AbstractSet[str] = frozenset()) -> None:
        """Fix the start offsets with ConsumeFrom.LAST, when the consumer starts.

        If the group has an offset in any queue of a topic, it consumes that topic already, and the queues without an
        offset are new. So are the queues of `awaited` topics: other members waited for them before they existed, and
        start at their first message.

        Args:
            queues: all queues of the consumer's topics that can be reached, whichever member will own them.
        """
        if self._rule is not ConsumeFrom.LAST:
            return
        answers = [each for each in await asyncio.gather(*map(self._ask, queues)) if each is not None]
        consumed = {queue.topic for queue, is_known in answers if is_known or queue.topic in awaited}
        without = [queue for queue, is_known in answers if not is_known]
        await asyncio.gather(*(self._fix_end(queue) for queue in without if queue.topic not in consumed))
        if any(queue.topic in consumed for queue in without):
            await asyncio.sleep(_OTHERS_SECONDS)

    async def find(self, queue: MessageQueue) -> StartOffset:
        """Return where the group is, or starts, in a queue.

        Raise the errors of its broker, and BrokerUnavailable.
        """
        if not self._clustering:
            return self._ends.pop(queue, None) or await self._first(queue)
        return await self._offsets.committed(queue) or await self._offsets.begin(queue, await self._first(queue))

    async def _first(self, queue: MessageQueue) -> StartOffset:
        by_time = self._rule is ConsumeFrom.TIMESTAMP and not queue.topic.startswith(RETRY_PREFIX)
        return await self._offsets.first(queue, self._rule if by_time else ConsumeFrom.FIRST, self._timestamp)

    async def _ask(self, queue: MessageQueue) -> tuple[MessageQueue, bool] | None:
        """Return a queue and whether the group has an offset in it.

        Return None if that cannot be found out now.
        """
        try:
            return queue, self._clustering and await self._offsets.committed(queue) is not None
        except RayMQError as error:
            _log.debug("position of %s: %s", queue, error)
            return None

    async def _fix_end(self, queue: MessageQueue) -> None:
        try:
            end = await self._offsets.first(queue, ConsumeFrom.LAST, None)
            if self._clustering:
                await self._offsets.begin(queue, end)
            else:
                self._ends[queue] = end
        except RayMQError as error:
            _log.debug("end of %s: %s", queue, error)
