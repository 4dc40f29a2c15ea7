"""The engine of a pull consumer: positions, bounds, fetches and commits of queues that its user names.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from raymq.actors.errors import (
    BrokerUnavailable,
    InvalidInput,
    OffsetOutOfRange,
    OffsetReset,
    RayMQError,
    Timeout,
    queue_not_found,
)
from raymq.actors.filter.wanted import Wanted
from raymq.actors.naming import check_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import admin as wire_admin
from raymq.actors.wire.commands import group as wire_group
from raymq.actors.wire.commands import offset as wire_offset
from raymq.actors.wire.commands import query as wire_query
from raymq.actors.wire.commands.fetch import Fetched
from raymq.actors.wire.frame import Command
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.requests.asking import ask, patiently
from raymq.client.requests.fan_out import gather
from raymq.client.requests.fetching import ANSWER_BYTES, ANSWER_SECONDS, answer_seconds, fetch
from raymq.client.requests.offsets import ConsumeFrom, OffsetRequests
from raymq.client.requests.read_ahead import ReadAhead
from raymq.client.timestamps import milliseconds_or_end
from raymq.storage.errors import no_answer_within

_T = TypeVar("_T")
#: What a small request may take.
CONTROL_SECONDS = 5.0


def check_max_messages(max_messages: int) -> int:
    """It, or InvalidInput."""
    return arguments.whole("max_messages", max_messages, 1)


def refused(offset: int, reset: OffsetReset) -> OffsetOutOfRange:
    """What a commit of `offset` raises that the broker has refused, since what was read is not there any more."""
    return OffsetOutOfRange(offset, 0, reset.offset)


async def _in_time(queue: MessageQueue, timeout: float, asking: Awaitable[_T]) -> _T:
    """What is answered to who has `timeout` seconds, and no more than an answer may take beyond it."""
    seconds = timeout + answer_seconds(timeout)
    try:
        async with asyncio.timeout(seconds):
            return await asking
    except TimeoutError as error:
        if isinstance(error, RayMQError):
            raise
        raise Timeout(queue.broker, no_answer_within(seconds)) from error


class Pulling:
    """What `PullConsumer` promises, call by call."""

    def __init__(self, mq: Connection, group: str) -> None:
        self._mq = mq
        self._group = group
        self._offsets = OffsetRequests(mq, group)
        #: Where each queue is read next. Who reads moves it once it has what is before.
        self._positions: dict[MessageQueue, int] = {}
        #: The recovery epoch of its broker that each position was reached under, as far as that is known.
        self.epochs: dict[MessageQueue, int] = {}
        #: The incarnation of its topic in which each position is meant: one that is made anew has other messages.
        self.incarnations: dict[MessageQueue, int] = {}
        self._name = f"pull-{uuid.uuid4().hex}"
        self._ahead = ReadAhead(self._fetch)

    def session(self, queue: MessageQueue) -> str:
        """By what a broker knows the fetches of a queue: a newer one of the same session ends what that has parked.

        Each queue has its own, so that several can be waited for at the same time, and so has each process that was
        forked: none ends what another one waits for. Any thread.
        """
        return f"{self._name}-{os.getpid()}:{queue.topic}:{queue.queue_id}"

    async def create_group(self) -> None:
        """Make the group on every broker that can be reached; the others make it with its first commit."""

        async def make(address: str) -> None:
            with contextlib.suppress(BrokerUnavailable):
                command = wire_group.create_group_command(self._group)
                await self._mq.pool.request(address, command, CONTROL_SECONDS)

        await gather((await self._mq.routes.cluster()).masters.values(), make)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic."""
        check_topic(topic)
        return (await self._mq.routes.readable(topic, fresh=True)).readable()

    async def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """The queue's minimum and maximum offset; QueueNotFound."""
        arguments.queue("queue", queue)
        answer = await self._ask(queue, lambda: wire_admin.topic_stats_command(queue.topic))
        stats = wire_admin.read_topic_stats(answer).get(queue)
        if stats is None:
            raise queue_not_found(queue)
        return stats[0], stats[1]

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset, None if it never committed one."""
        arguments.queue("queue", queue)
        place = await patiently(lambda: self._offsets.committed(queue), CONTROL_SECONDS)
        return None if place is None else place[0]

    async def position(self, queue: MessageQueue) -> int:
        """The offset of the next fetch."""
        arguments.queue("queue", queue)
        if queue not in self.incarnations:  # first: what follows is meant in this one, or is told to be of another
            _, incarnation = await patiently(
                lambda: self._offsets.first(queue, ConsumeFrom.FIRST, None), CONTROL_SECONDS
            )
            self.incarnations[queue] = incarnation
        if queue not in self._positions:
            committed = await self.committed(queue)
            self._positions[queue] = (await self.offsets(queue))[0] if committed is None else committed
        return self._positions[queue]

    async def position_within(self, queue: MessageQueue, timeout: float) -> int:
        """`position` for who has `timeout` seconds; Timeout where it is not answered in time."""
        arguments.queue("queue", queue)
        known = self.known_position(queue)
        return await _in_time(queue, timeout, self.position(queue)) if known is None else known

    async def _taken(self, queue: MessageQueue, position: int, max_messages: int, timeout: float) -> Fetched | None:
        """What was fetched ahead."""
        if not self._ahead.holds(queue):
            return None
        return await _in_time(queue, timeout, self._ahead.take(queue, position, max_messages))

    async def seek(self, queue: MessageQueue, offset: int | str) -> None:
        """Go to an offset or an end of the queue."""
        arguments.queue("queue", queue)
        if not isinstance(offset, str):
            self._go_to(queue, arguments.offset("offset", offset), None)
            return
        if offset not in ("earliest", "latest"):
            raise InvalidInput("offset", 'a number, "earliest" or "latest"', offset)
        rule = ConsumeFrom.LAST if offset == "latest" else ConsumeFrom.FIRST
        self._go_to(queue, *await patiently(lambda: self._offsets.first(queue, rule, None), CONTROL_SECONDS))

    async def seek_to_time(self, queue: MessageQueue, timestamp: float | datetime) -> None:
        """Go to the first message stored then or later."""
        arguments.queue("queue", queue)
        timestamp_ms = milliseconds_or_end("timestamp", timestamp)
        answer = await self._ask(queue, lambda: wire_query.time_command(queue.topic, queue.queue_id, timestamp_ms))
        self._go_to(queue, *wire_offset.read_place(answer))

    def _go_to(self, queue: MessageQueue, offset: int, incarnation: int | None) -> None:
        """`incarnation` is that of the topic in which the offset was found; None: that in which it is read first."""
        self._ahead.forget(queue)  # it may be of a topic that was made anew
        self._positions[queue] = offset
        if incarnation is None:
            self.incarnations.pop(queue, None)
        else:
            self.incarnations[queue] = incarnation
        self.epochs.pop(queue, None)  # whoever chooses a place does so by what he knows now

    async def fetch(self, queue: MessageQueue, max_messages: int, timeout: float) -> Fetched | None:
        """What is at the position, which the caller moves; None at the time-out. What follows is fetched ahead."""
        check_max_messages(max_messages)
        arguments.duration("timeout", timeout)
        deadline = time.monotonic() + timeout
        position = await self.position_within(queue, timeout)
        part = await self._taken(queue, position, max_messages, timeout)
        if part is None:

            async def once() -> list[Fetched]:
                known = self.epochs.get(queue)
                parts = await self._fetch(queue, position, max_messages, deadline)
                if parts or self.epochs.get(queue) == known:
                    return parts
                return await self._fetch(queue, position, max_messages, deadline)

            parts = await patiently(once, max(0.0, deadline - time.monotonic()))
            if not parts:
                return None
            part = parts[0]
        self._check(queue, part)
        if part.next_offset < part.max_offset:
            self._ahead.begin(queue, part.next_offset, max_messages)
        return part

    def known_position(self, queue: MessageQueue) -> int | None:
        """`position`, as far as it need not be asked for. Any thread."""
        return self._positions.get(queue) if queue in self.incarnations else None

    def fetched(self, queue: MessageQueue, part: Fetched) -> None:
        """The caller's thread has fetched this. Any thread. Raises the part's error."""
        self._check(queue, part)
        if self._ahead.holds(queue):
            self._mq.loop.call_soon_threadsafe(self._ahead.forget, queue)

    def go_on_at(self, queue: MessageQueue, offset: int) -> None:
        """The caller has what the last fetch brought up to there, which may be less than all. Any thread.

        No signal interrupts who calls this as its last step: it has its messages, or the position is as before.
        """
        self._positions[queue] = offset

    def _check(self, queue: MessageQueue, part: Fetched) -> None:
        if isinstance(part.error, OffsetReset):  # it has read what the broker's log has lost, or of another topic
            raise OffsetOutOfRange(self._positions[queue], part.min_offset, part.error.offset)
        if part.error is not None:
            raise part.error

    async def fetch_again(self, queue: MessageQueue, part: Fetched) -> Fetched:
        """What the last fetch brought, or what of it is before a damage.

        Raises:
            StoreCorrupt: the first of it is damaged in the broker's file.
        """
        self._ahead.forget(queue)
        start = int(part.offsets[0])

        async def once() -> list[Fetched]:
            return await self._fetch(queue, start, len(part.sizes), check_crc=True)

        parts = await patiently(once, CONTROL_SECONDS)
        if not parts:
            raise BrokerUnavailable(queue.broker, "what it gave before is gone")
        if parts[0].error is not None:
            raise parts[0].error
        return parts[0]

    async def close(self) -> None:
        """Give back what was fetched ahead."""
        self._ahead.clear()

    async def _fetch(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        deadline: float | None = None,
        *,
        check_crc: bool = False,
    ) -> list[Fetched]:
        """What is there until `deadline`; None: now, for whoever comes for it."""
        wait_seconds = 0.0 if deadline is None else max(0.0, deadline - time.monotonic())
        within = ANSWER_SECONDS if deadline is None else answer_seconds(wait_seconds)
        epoch, incarnation = self.epochs.get(queue, 0), self.incarnations.get(queue)
        wanted = [Wanted(queue.topic, queue.queue_id, offset, epoch=epoch, incarnation=incarnation)]
        limits = (max_messages, ANSWER_BYTES, wait_seconds)
        told: list[int] = []
        parts = await fetch(
            self._mq,
            queue.broker,
            self.session(queue),
            wanted,
            *limits,
            check_crc=check_crc,
            on_epoch=told.append,
            answer_within=within,
        )
        if told and not (parts and parts[0].error):
            self.epochs[queue] = told[0]
        return parts

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Everything below `offset` is done; OffsetOutOfRange if it is not what was read: see `PullConsumer.poll`."""
        command = self.commit_command(queue, offset)
        try:
            await self._ask(queue, lambda: command)
        except OffsetReset as reset:
            raise refused(offset, reset) from None

    def commit_command(self, queue: MessageQueue, offset: int) -> Command:
        """The request of a commit. Any thread. InvalidInput: there is no such queue or offset."""
        arguments.queue("queue", queue)
        place = self._group, queue.topic, queue.queue_id, arguments.offset("offset", offset)
        epoch, incarnation = self.epochs.get(queue), self.incarnations.get(queue)
        return wire_offset.update_offset_command(*place, overrules_reset=True, epoch=epoch, incarnation=incarnation)

    async def _ask(self, queue: MessageQueue, command: Callable[[], Command]) -> Command:
        return await patiently(
            lambda: ask(self._mq, queue.topic, queue.broker, command(), CONTROL_SECONDS), CONTROL_SECONDS
        )
