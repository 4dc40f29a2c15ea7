"""Fetch the queues of a pull consumer, on a thread or the loop.

A thread fetches over a socket of its own: a small fetch takes two thirds of the processor time that it takes on the
loop. Asyncio code, a thread whose socket has failed and a first request use the loop.

The next fetch of a queue is requested before the caller decodes the messages of this one, so the broker sends while the
caller decodes. Records never change, so the answer of a fetch in advance equals the answer of a fetch now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard, TypeVar

from raymq.actors.errors import BrokerUnavailable, RayMQError, Timeout
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.blocking_channel import BlockingChannel
from raymq.actors.wire.commands.fetch_commands import Fetched, fetch_command, read_epoch, read_fetched
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import ask, retry_while_unavailable
from raymq.client.requests.fetch_request import ANSWER_BYTES, ANSWER_SECONDS
from raymq.storage.errors import no_answer_within

_T = TypeVar("_T")
#: The least time for an answer, however short the caller's time-out is.
_LEAST_ANSWER_SECONDS: Final = 2.0
#: The least time-out to open a socket, however short the caller's time-out is.
_LEAST_CONNECT_SECONDS: Final = 0.5
#: The maximum number of queues with a fetch in advance, the latest ones; each answer is as large as a fetch may be.
MAX_PREFETCHED_QUEUES: Final = 4


def answer_seconds(timeout: float) -> float:
    """Return the time for an answer after the caller's time-out: as long again.

    It is bounded on both sides. With it a broker that hangs is detected soon.
    """
    return min(ANSWER_SECONDS, max(_LEAST_ANSWER_SECONDS, timeout))


async def in_time(queue: MessageQueue, timeout: float, asking: Awaitable[_T]) -> _T:
    """Await a result for at most `timeout` seconds plus the time for a response.

    Raise Timeout if it takes longer.
    """
    seconds = timeout + answer_seconds(timeout)
    try:
        async with asyncio.timeout(seconds):
            return await asking
    except TimeoutError as error:
        if isinstance(error, RayMQError):
            raise
        raise Timeout(queue.broker, no_answer_within(seconds)) from error


class Prefetch(Protocol):
    """A fetch that was requested in advance."""

    def is_usable(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return True if a fetch on `loop` (None: a thread) can use the answer."""

    def give_up(self) -> None:
        """Discard the answer. Any thread may call this."""


@dataclass(frozen=True, slots=True)
class _ThreadPrefetch:
    """A request on a thread's channel whose answer is pending."""

    channel: BlockingChannel
    number: int

    def is_usable(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        return loop is None and self.channel.is_open

    def give_up(self) -> None:
        self.channel.forget(self.number)


@dataclass(frozen=True, slots=True)
class _LoopPrefetch:
    """A request of the event loop. After a fork its loop is the parent's."""

    task: asyncio.Task[Fetched | None]
    pid: int

    def is_usable(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        return loop is self.task.get_loop()

    def give_up(self) -> None:
        if self.pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the task
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)


class PrefetchTable:
    """The fetch requested in advance for each queue, with its parameters."""

    def __init__(self) -> None:
        self._begun: dict[MessageQueue, tuple[tuple[object, ...], Prefetch]] = {}

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter(self._begun)

    def make_room(self, queue: MessageQueue) -> None:
        """Give up this queue's fetch, and the oldest one of a full table.

        `put` may follow.
        """
        self.forget(queue)
        if len(self._begun) >= MAX_PREFETCHED_QUEUES:
            self.forget(next(iter(self._begun)))

    def put(self, queue: MessageQueue, parameters: tuple[object, ...], begun: Prefetch) -> None:
        """Add a fetch that was started."""
        self._begun[queue] = parameters, begun

    def take(
        self, queue: MessageQueue, parameters: tuple[object, ...], loop: asyncio.AbstractEventLoop | None
    ) -> Prefetch | None:
        """Remove and return the fetch with these parameters; None if there is none.

        A fetch of the queue with other parameters, or one that is not usable, is given up.
        """
        known = self._begun.get(queue)
        if known is None:
            return None
        if known[0] != parameters or not known[1].is_usable(loop):
            self.forget(queue)
            return None
        del self._begun[queue]
        return known[1]

    def forget(self, queue: MessageQueue) -> None:
        """Give up the fetch of a queue, if any."""
        known = self._begun.pop(queue, None)
        if known is not None:
            known[1].give_up()

    def clear(self) -> None:
        """Give up all fetches."""
        for queue in list(self._begun):
            self.forget(queue)


class PullFetcher:
    """The fetches of one pull consumer, used by one caller at a time."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq
        self._name = f"pull-{uuid.uuid4().hex}"
        #: The recovery epoch of the broker under which each position was reached, if known.
        self.epochs: dict[MessageQueue, int] = {}
        #: The incarnation of the topic to which each position applies. A recreated topic has other messages.
        self.incarnations: dict[MessageQueue, int] = {}
        #: Open channels, by the broker's name.
        self._channels: dict[str, BlockingChannel] = {}
        self.ahead = PrefetchTable()

    def close(self) -> None:
        """Give up all fetches in advance and end the channels."""
        self.ahead.clear()
        for channel in self._channels.values():
            self._mq.channels.end(channel)
        self._channels.clear()

    def _command(
        self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float, *, check_crc: bool = False
    ) -> Command:
        # A new fetch of a session ends the parked fetch of the same session. So each queue and each forked process has
        # its own: several fetches can wait at the same time.
        session = f"{self._name}-{os.getpid()}:{queue.topic}:{queue.queue_id}"
        epoch, incarnation = self.epochs.get(queue, 0), self.incarnations.get(queue)
        specs = [FetchSpec(queue.topic, queue.queue_id, offset, epoch=epoch, incarnation=incarnation)]
        return fetch_command(session, specs, max_messages, ANSWER_BYTES, wait_seconds, check_crc=check_crc)

    def _part(self, queue: MessageQueue, answer: Command) -> Fetched | None:
        """Return the part of an answer, or None; remember the broker's epoch."""
        parts, epoch = read_fetched(answer, 1), read_epoch(answer)
        part = parts[0] if parts else None
        if epoch is not None and not (part is not None and part.error):
            self.epochs[queue] = epoch
        return part

    def _parameters(self, queue: MessageQueue, offset: int, max_messages: int) -> tuple[object, ...]:
        """Return what a fetch in advance must have been requested with.

        A seek may change the incarnation.
        """
        return offset, max_messages, self.incarnations.get(queue)

    # -- on the calling thread ------------------------------------------------------------------------------------

    def reaches(self, queue: MessageQueue) -> bool:
        """Return True if a thread can probably reach the queue's broker.

        False on the connection's event loop, which must not block.
        """
        if self._mq.is_on_loop:
            return False
        channel = self._channels.get(queue.broker)
        return (channel is not None and channel.is_open) or self.address(queue) is not None

    def fetch_blocking(
        self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float
    ) -> Fetched | None:
        """Return the records at `offset` within `wait_seconds`, None if there were none.

        Raises:
            BrokerUnavailable: the broker did not answer within `answer_seconds` more, or there was no connection.
        """
        deadline = time.monotonic() + wait_seconds
        latest = deadline + answer_seconds(wait_seconds)
        ahead = self.ahead.take(queue, self._parameters(queue, offset, max_messages), None)
        part = self._read(queue, ahead, latest) if isinstance(ahead, _ThreadPrefetch) else None
        if part is not None and part.error is not None:
            part = None  # it is fetched again
        while part is None:
            known, wait = self.epochs.get(queue), max(0.0, deadline - time.monotonic())
            part = self._read(queue, self._write(queue, offset, max_messages, wait, latest), latest)
            if self.epochs.get(queue) == known:
                break
        if _has_more(part):
            self.ahead.make_room(queue)
            request = self._write(queue, part.next_offset, max_messages, 0.0, latest)
            self.ahead.put(queue, self._parameters(queue, part.next_offset, max_messages), request)
        return part

    def _write(
        self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float, latest: float
    ) -> _ThreadPrefetch:
        command = self._command(queue, offset, max_messages, wait_seconds)
        channel = self._channel(queue, max(_LEAST_CONNECT_SECONDS, wait_seconds / 2))
        return _ThreadPrefetch(channel, channel.write(command, latest - time.monotonic()))

    def _read(self, queue: MessageQueue, request: _ThreadPrefetch, latest: float) -> Fetched | None:
        try:
            answer = request.channel.read(latest - time.monotonic(), request.number)
        except BrokerUnavailable:
            self._mq.loop.call_soon_threadsafe(self._mq.routes.doubt, request.channel.address)
            raise
        return self._part(queue, answer)

    def _channel(self, queue: MessageQueue, seconds: float) -> BlockingChannel:
        """Return the channel to the queue's broker; open one if needed.

        Opening it takes at most `seconds`, so that the rest of the caller's time is left for the event loop's
        connection.
        """
        channel = self._channels.get(queue.broker)
        if channel is not None:
            moved = self.address(queue) not in (None, channel.address)
            if not moved and channel.is_open and (channel.has_pending_answer or channel.is_reusable):
                return channel
            self._mq.channels.end(channel)
            del self._channels[queue.broker]
        address = self.address(queue)
        channel = None if address is None else self._mq.channels.open(address, min(seconds, ANSWER_SECONDS))
        if channel is None:
            raise BrokerUnavailable(queue.broker, "no connection")
        self._channels[queue.broker] = channel
        return channel

    def address(self, queue: MessageQueue) -> str | None:
        """Return the address of the queue's broker, if it is known and connected."""
        route = self._mq.routes.known(queue.topic)
        address = None if route is None else route.addresses.get(queue.broker)
        return address if address is not None and self._mq.pool.is_connected(address) else None

    # -- on the event loop ----------------------------------------------------------------------------------------

    async def fetch(self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float) -> Fetched | None:
        """Return the records at `offset` within `wait_seconds`, None if there were none.

        The request is repeated while the broker is unreachable.
        """
        deadline = time.monotonic() + wait_seconds
        part = await self._taken(queue, offset, max_messages, wait_seconds)
        if part is None:

            async def once() -> Fetched | None:
                known = self.epochs.get(queue)
                part = await self._ask(queue, offset, max_messages, deadline)
                if part is not None or self.epochs.get(queue) == known:
                    return part
                return await self._ask(queue, offset, max_messages, deadline)

            part = await retry_while_unavailable(once, max(0.0, deadline - time.monotonic()))
        if _has_more(part):
            self.ahead.make_room(queue)
            task = asyncio.get_running_loop().create_task(self._ask(queue, part.next_offset, max_messages))
            task.add_done_callback(_retrieve_exception)
            parameters = self._parameters(queue, part.next_offset, max_messages)
            self.ahead.put(queue, parameters, _LoopPrefetch(task, os.getpid()))
        return part

    async def _taken(self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float) -> Fetched | None:
        """Return the answer of the matching fetch in advance, None if it cannot be used."""
        parameters = self._parameters(queue, offset, max_messages)
        ahead = self.ahead.take(queue, parameters, asyncio.get_running_loop())
        if not isinstance(ahead, _LoopPrefetch):
            return None
        part = await in_time(queue, wait_seconds, _answer(ahead.task))
        return None if part is None or part.error is not None else part

    async def check_again(self, queue: MessageQueue, offset: int, max_messages: int, seconds: float) -> Fetched | None:
        """Repeat a fetch with records checked by the broker, for `seconds`."""
        self.ahead.forget(queue)
        return await retry_while_unavailable(lambda: self._ask(queue, offset, max_messages, check_crc=True), seconds)

    async def _ask(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        deadline: float | None = None,
        *,
        check_crc: bool = False,
    ) -> Fetched | None:
        """Send one fetch, which waits for the first message until `deadline`, if there is one."""
        wait_seconds = 0.0 if deadline is None else max(0.0, deadline - time.monotonic())
        within = ANSWER_SECONDS if deadline is None else answer_seconds(wait_seconds)
        command = self._command(queue, offset, max_messages, wait_seconds, check_crc=check_crc)
        return self._part(queue, await ask(self._mq, queue.topic, queue.broker, command, wait_seconds + within))


def _has_more(part: Fetched | None) -> TypeGuard[Fetched]:
    """Return True if the queue has more records behind this part."""
    return part is not None and part.error is None and part.next_offset < part.max_offset


async def _answer(task: asyncio.Task[Fetched | None]) -> Fetched | None:
    """Return the answer of a fetch in advance, None if it failed."""
    with contextlib.suppress(RayMQError):
        return await task
    return None


def _retrieve_exception(task: asyncio.Task[Fetched | None]) -> None:
    """Retrieve the exception of an unused fetch, so that asyncio does not log it.

    The reader sends the fetch again when it needs the messages.
    """
    if not task.cancelled():
        task.exception()
