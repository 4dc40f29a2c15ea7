"""A group's offsets in the brokers' keeping: where to start a queue, and committing what is done.

"Never committed" and "could not be read" are different: only the former lets a consumer start by its own rule.
"""

from __future__ import annotations

import enum

from raymq.actors.errors import MessageNotFound, OffsetReset
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import offset as wire_offset
from raymq.actors.wire.commands import query as wire_query
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.asking import ask

_REQUEST_SECONDS = 5.0


class ConsumeFrom(enum.Enum):
    """Where a group starts in a queue in which it never committed; the values are RocketMQ's names.

    LAST is the end of each queue that is there when the group's first member starts; queues that come later begin at
    their first message.
    """

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class OffsetRequests:
    """One group's offsets. Runs on the connection's event loop."""

    def __init__(self, mq: Connection, group: str) -> None:
        self._mq = mq
        self._group = group

    async def committed(self, queue: MessageQueue) -> tuple[int, int] | None:
        """The committed offset and its topic's incarnation, None if there is none. Any other failure raises."""
        try:
            command = wire_offset.query_offset_command(self._group, queue.topic, queue.queue_id)
            return wire_offset.read_place(await self._ask(queue, command))
        except MessageNotFound:
            return None

    async def first(self, queue: MessageQueue, rule: ConsumeFrom, timestamp: float | None) -> tuple[int, int]:
        """Where `rule` starts in `queue`, and its topic's incarnation; `timestamp` in seconds."""
        if rule is ConsumeFrom.TIMESTAMP:
            timestamp_ms = int((timestamp or 0.0) * 1000)
            command = wire_query.time_command(queue.topic, queue.queue_id, timestamp_ms)
        else:
            newest = rule is ConsumeFrom.LAST
            command = wire_query.bound_command(queue.topic, queue.queue_id, newest=newest)
        return wire_offset.read_place(await self._ask(queue, command))

    async def begin(self, queue: MessageQueue, place: tuple[int, int]) -> tuple[int, int]:
        """Commit where the group begins, with its topic's incarnation; if it has begun meanwhile, where it is."""
        offset, incarnation = place
        try:
            await self.commit(queue, offset, since=wire_offset.NOWHERE, incarnation=incarnation)
        except OffsetReset as known:
            return known.offset, incarnation if known.incarnation is None else known.incarnation
        return place

    async def commit(
        self,
        queue: MessageQueue,
        offset: int,
        since: int | None = None,
        incarnation: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Everything below `offset` is done; on the broker's disk when this returns.

        Raises:
            OffsetReset: the group was sent back before `since`, the offset that it had, or elsewhere and does not know
                yet, or the topic is not that of `incarnation` any more, or the broker's log has lost what was read
                under `epoch` before `offset`; nothing was committed.
        """
        group, topic, queue_id = self._group, queue.topic, queue.queue_id
        command = wire_offset.update_offset_command(
            group, topic, queue_id, offset, since=since, incarnation=incarnation, epoch=epoch
        )
        await self._ask(queue, command)

    async def _ask(self, queue: MessageQueue, command: Command) -> Command:
        return await ask(self._mq, queue.topic, queue.broker, command, _REQUEST_SECONDS)
