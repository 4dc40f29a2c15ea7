"""Read and commit a group's offsets at the brokers.

"Never committed" and "could not be read" are different: only the former lets a consumer start by its own rule.
"""

from __future__ import annotations

import enum

from raymq.actors.errors import MessageNotFound, OffsetReset
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import offset_commands as wire_offset
from raymq.actors.wire.commands import query_commands as wire_query
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import ask

_REQUEST_SECONDS = 5.0


class ConsumeFrom(enum.Enum):
    """Where a group without a committed offset starts; the values are RocketMQ's names.

    FIRST is the first message of each queue. TIMESTAMP is the first message stored at a time or later. LAST is the end
    of each queue that exists when the group's first member starts; queues that are added later start at their first
    message.
    """

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class OffsetRequests:
    """The requests for one group's offsets. Runs on the connection's event loop."""

    def __init__(self, mq: Connection, group: str) -> None:
        self._mq = mq
        self._group = group

    async def committed(self, queue: MessageQueue) -> tuple[int, int] | None:
        """Return the committed offset and its topic's incarnation; None if there is none.

        Raise the error of any other failure.
        """
        try:
            command = wire_offset.query_offset_command(self._group, queue.topic, queue.queue_id)
            return wire_offset.read_committed_offset(await self._request(queue, command))
        except MessageNotFound:
            return None

    async def first(self, queue: MessageQueue, rule: ConsumeFrom, timestamp: float | None) -> tuple[int, int]:
        """Return where `rule` starts in `queue`, and its topic's incarnation.

        `timestamp` is in seconds.
        """
        if rule is ConsumeFrom.TIMESTAMP:
            timestamp_ms = int((timestamp or 0.0) * 1000)
            command = wire_query.offset_by_time_command(queue.topic, queue.queue_id, timestamp_ms)
        else:
            newest = rule is ConsumeFrom.LAST
            command = wire_query.offset_bound_command(queue.topic, queue.queue_id, newest=newest)
        return wire_offset.read_committed_offset(await self._request(queue, command))

    async def begin(self, queue: MessageQueue, place: tuple[int, int]) -> tuple[int, int]:
        """Commit the group's start offset in a queue, and return the offset in force.

        Both are pairs of an offset and the topic's incarnation. If another member has committed a start offset
        meanwhile, that one is returned.
        """
        offset, incarnation = place
        try:
            await self.commit(queue, offset, since=wire_offset.NO_OFFSET, incarnation=incarnation)
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
        """Commit `offset`: all messages below it are consumed.

        The offset is on the broker's disk when this returns.

        Raises:
            OffsetReset: nothing was committed, for one of these reasons: the group was reset to an offset before
                `since`, its previous offset; it was reset elsewhere and has not noticed yet; the topic is no longer
                that of `incarnation`; the broker's log has lost records before `offset` that were read under `epoch`.
        """
        group, topic, queue_id = self._group, queue.topic, queue.queue_id
        command = wire_offset.update_offset_command(
            group, topic, queue_id, offset, since=since, incarnation=incarnation, epoch=epoch
        )
        await self._request(queue, command)

    async def _request(self, queue: MessageQueue, command: Command) -> Command:
        return await ask(self._mq, queue.topic, queue.broker, command, _REQUEST_SECONDS)
