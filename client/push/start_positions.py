"""Where a group begins in the queues in which it never committed. Runs on the connection's event loop.

`ConsumeFrom.LAST` means where the queues end when the group starts. So the first member that starts fixes that, in all
queues of the topic, its own and those of members to come; and whatever is found without an offset later is a new queue,
or one on a broker that comes (back): what is in it has not been seen by the group, and it begins at its minimum. The
queue of what is retried always begins there: what lies in it failed in this group.
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
from raymq.client.requests.offsets import ConsumeFrom

#: How long a member that starts at the same time is given to fix the rest of the queues.
_OTHERS_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)

#: An offset, and the incarnation of the topic in which it is meant.
Place = tuple[int, int]


class Offsets(Protocol):
    """A group's offsets at its brokers: `OffsetRequests`."""

    async def committed(self, queue: MessageQueue) -> Place | None:
        """None if there is none."""

    async def first(self, queue: MessageQueue, rule: ConsumeFrom, timestamp: float | None) -> Place:
        """Where `rule` begins in the queue."""

    async def begin(self, queue: MessageQueue, place: Place) -> Place:
        """Commit where the group begins, unless another member was quicker; where it does begin."""


class StartPositions:
    """The start positions of one consumer.

    Args:
        offsets: of its group.
        rule, timestamp: what the program wants (`ConsumeFrom`, and seconds since 1970).
        clustering: whether the brokers keep the group's offsets; else each member begins for itself.
    """

    def __init__(self, offsets: Offsets, rule: ConsumeFrom, timestamp: float | None, *, clustering: bool) -> None:
        self._offsets = offsets
        self._rule = rule
        self._timestamp = timestamp
        self._clustering = clustering
        #: Of a member that begins for itself: the ends of the queues that were there when it started.
        self._ends: dict[MessageQueue, Place] = {}

    async def fix(self, queues: Iterable[MessageQueue], awaited: AbstractSet[str] = frozenset()) -> None:
        """The consumer starts, and these are all queues of its topics that can be asked for, whoever will have them.

        A topic in which the group has an offset anywhere is one that it consumes already: what has none there is new.
        So is one of `awaited`: other members were there before it, and begin at its first message.
        """
        if self._rule is not ConsumeFrom.LAST:
            return
        told = [each for each in await asyncio.gather(*map(self._ask, queues)) if each is not None]
        consumed = {queue.topic for queue, is_known in told if is_known or queue.topic in awaited}
        without = [queue for queue, is_known in told if not is_known]
        await asyncio.gather(*(self._fix_end(queue) for queue in without if queue.topic not in consumed))
        if any(queue.topic in consumed for queue in without):
            await asyncio.sleep(_OTHERS_SECONDS)

    async def find(self, queue: MessageQueue) -> Place:
        """Where the group is, or begins, in a queue. Raises what its broker answers, and BrokerUnavailable."""
        if not self._clustering:
            return self._ends.pop(queue, None) or await self._first(queue)
        return await self._offsets.committed(queue) or await self._offsets.begin(queue, await self._first(queue))

    async def _first(self, queue: MessageQueue) -> Place:
        by_time = self._rule is ConsumeFrom.TIMESTAMP and not queue.topic.startswith(RETRY_PREFIX)
        return await self._offsets.first(queue, self._rule if by_time else ConsumeFrom.FIRST, self._timestamp)

    async def _ask(self, queue: MessageQueue) -> tuple[MessageQueue, bool] | None:
        """Whether the group has an offset there; None if that cannot be found out now."""
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
