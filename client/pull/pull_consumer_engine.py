"""Keep a pull consumer's positions, and fetch and commit the queues that its caller names.

The engine runs on the connection's event loop.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import datetime

from raymq.actors.errors import (
    BrokerUnavailable,
    InvalidInput,
    OffsetOutOfRange,
    OffsetReset,
    queue_not_found,
)
from raymq.actors.naming import check_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import admin_commands as wire_admin
from raymq.actors.wire.commands import group_commands as wire_group
from raymq.actors.wire.commands import offset_commands as wire_offset
from raymq.actors.wire.commands import query_commands as wire_query
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.actors.wire.frame import Command
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.pull.pull_fetcher import PullFetcher, in_time
from raymq.client.requests.broker_requests import ask, retry_while_unavailable
from raymq.client.requests.fan_out import gather
from raymq.client.requests.offset_requests import ConsumeFrom, OffsetRequests
from raymq.client.timestamps import milliseconds_or_end

#: The time-out of a small request.
CONTROL_SECONDS = 5.0


def check_max_messages(max_messages: int) -> int:
    """Return `max_messages`. Raise InvalidInput unless it is a positive integer."""
    return arguments.whole("max_messages", max_messages, 1)


def refused(offset: int, reset: OffsetReset) -> OffsetOutOfRange:
    """Return the error of a commit that the broker refused after messages were lost.

    `offset` is the offset of the commit; the broker reports a reset of the queue.
    """
    return OffsetOutOfRange(offset, 0, reset.offset)


class PullConsumerEngine:
    """The implementation of the methods of `PullConsumer`."""

    def __init__(self, mq: Connection, group: str) -> None:
        self._mq = mq
        self._group = group
        self._offsets = OffsetRequests(mq, group)
        #: The offset at which each queue is read next. The caller moves it once it has the messages before it.
        self._positions: dict[MessageQueue, int] = {}
        #: Fetches at these positions.
        self.fetcher = PullFetcher(mq)

    async def create_group(self) -> None:
        """Create the group on every broker that can be reached.

        Other brokers create it with its first commit.
        """

        async def make(address: str) -> None:
            with contextlib.suppress(BrokerUnavailable):
                command = wire_group.create_group_command(self._group)
                await self._mq.pool.request(address, command, CONTROL_SECONDS)

        await gather((await self._mq.routes.cluster()).masters.values(), make)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic."""
        check_topic(topic)
        return (await self._mq.routes.readable(topic, fresh=True)).readable()

    async def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the queue's minimum and maximum offset.

        Raise QueueNotFound if the queue does not exist.
        """
        arguments.queue("queue", queue)
        answer = await self._ask(queue, lambda: wire_admin.topic_stats_command(queue.topic))
        stats = wire_admin.read_topic_stats(answer).get(queue)
        if stats is None:
            raise queue_not_found(queue)
        return stats[0], stats[1]

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None if there is none."""
        arguments.queue("queue", queue)
        place = await retry_while_unavailable(lambda: self._offsets.committed(queue), CONTROL_SECONDS)
        return None if place is None else place[0]

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next fetch."""
        arguments.queue("queue", queue)
        if queue not in self.fetcher.incarnations:  # later answers apply to this incarnation, or report another
            _, incarnation = await retry_while_unavailable(
                lambda: self._offsets.first(queue, ConsumeFrom.FIRST, None), CONTROL_SECONDS
            )
            self.fetcher.incarnations[queue] = incarnation
        if queue not in self._positions:
            committed = await self.committed(queue)
            self._positions[queue] = (await self.offsets(queue))[0] if committed is None else committed
        return self._positions[queue]

    async def position_within(self, queue: MessageQueue, timeout: float) -> int:
        """Return `position` within `timeout` seconds. Raise Timeout if it takes longer."""
        arguments.queue("queue", queue)
        known = self.known_position(queue)
        return await in_time(queue, timeout, self.position(queue)) if known is None else known

    async def seek(self, queue: MessageQueue, offset: int | str) -> None:
        """Set the position to an offset or to an end of the queue."""
        arguments.queue("queue", queue)
        if not isinstance(offset, str):
            self._go_to(queue, arguments.offset("offset", offset), None)
            return
        if offset not in ("earliest", "latest"):
            raise InvalidInput("offset", 'a number, "earliest" or "latest"', offset)
        rule = ConsumeFrom.LAST if offset == "latest" else ConsumeFrom.FIRST
        self._go_to(
            queue, *await retry_while_unavailable(lambda: self._offsets.first(queue, rule, None), CONTROL_SECONDS)
        )

    async def seek_to_time(self, queue: MessageQueue, timestamp: float | datetime) -> None:
        """Set the position to the first message stored at `timestamp` or later."""
        arguments.queue("queue", queue)
        timestamp_ms = milliseconds_or_end("timestamp", timestamp)
        answer = await self._ask(
            queue, lambda: wire_query.offset_by_time_command(queue.topic, queue.queue_id, timestamp_ms)
        )
        self._go_to(queue, *wire_offset.read_committed_offset(answer))

    def _go_to(self, queue: MessageQueue, offset: int, incarnation: int | None) -> None:
        """Set the position to an offset.

        Args:
            incarnation: the incarnation of the topic in which the offset was found. None: the one in which it is read
                first.
        """
        self.fetcher.ahead.forget(queue)  # the messages may be those of a topic that was recreated since
        self._positions[queue] = offset
        if incarnation is None:
            self.fetcher.incarnations.pop(queue, None)
        else:
            self.fetcher.incarnations[queue] = incarnation
        self.fetcher.epochs.pop(queue, None)  # a seek accepts the broker's present state

    async def fetch(self, queue: MessageQueue, max_messages: int, timeout: float) -> Fetched | None:
        """Return the messages at the position, or None at the time-out.

        The caller moves the position.
        """
        check_max_messages(max_messages)
        arguments.duration("timeout", timeout)
        deadline = time.monotonic() + timeout
        position = await self.position_within(queue, timeout)
        part = await self.fetcher.fetch(queue, position, max_messages, max(0.0, deadline - time.monotonic()))
        if part is not None:
            self.check(queue, part)
        return part

    def known_position(self, queue: MessageQueue) -> int | None:
        """Return `position` if no request is needed for it, else None.

        Any thread may call this.
        """
        return self._positions.get(queue) if queue in self.fetcher.incarnations else None

    def advance_to(self, queue: MessageQueue, offset: int) -> None:
        """Move the position to the end of the messages that the caller has received.

        These may be fewer than the last fetch returned. Any thread may call this. The caller does so as its last step,
        which no signal can interrupt: it either has its messages, or the position has not moved.
        """
        self._positions[queue] = offset

    def check(self, queue: MessageQueue, part: Fetched) -> None:
        """Raise the error of a fetch at the position, if any. Any thread."""
        if isinstance(part.error, OffsetReset):  # the log lost what was read, or the topic is new
            raise OffsetOutOfRange(self._positions[queue], part.min_offset, part.error.offset)
        if part.error is not None:
            raise part.error

    async def fetch_again(self, queue: MessageQueue, part: Fetched) -> Fetched:
        """Repeat the last fetch with a check of the records.

        Return the records before any damage.

        Raises:
            StoreCorrupt: the first record is damaged in the broker's file.
            BrokerUnavailable: the records are no longer there.
        """
        again = await self.fetcher.check_again(queue, int(part.offsets[0]), len(part.sizes), CONTROL_SECONDS)
        if again is None:
            raise BrokerUnavailable(queue.broker, "the messages that it returned before are no longer there")
        if again.error is not None:
            raise again.error
        return again

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit that all messages below `offset` are consumed.

        Raise OffsetOutOfRange if the broker's messages are not those that were read; see `PullConsumer.poll`.
        """
        command = self.commit_command(queue, offset)
        try:
            await self._ask(queue, lambda: command)
        except OffsetReset as reset:
            raise refused(offset, reset) from None

    def commit_command(self, queue: MessageQueue, offset: int) -> Command:
        """Return the request of a commit. Any thread may call this.

        Raise InvalidInput if the queue or the offset is not valid.
        """
        arguments.queue("queue", queue)
        place = self._group, queue.topic, queue.queue_id, arguments.offset("offset", offset)
        epoch, incarnation = self.fetcher.epochs.get(queue), self.fetcher.incarnations.get(queue)
        return wire_offset.update_offset_command(*place, overrules_reset=True, epoch=epoch, incarnation=incarnation)

    async def _ask(self, queue: MessageQueue, command: Callable[[], Command]) -> Command:
        return await retry_while_unavailable(
            lambda: ask(self._mq, queue.topic, queue.broker, command(), CONTROL_SECONDS), CONTROL_SECONDS
        )
