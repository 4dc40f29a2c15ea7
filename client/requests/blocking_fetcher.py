"""Fetch messages on the calling thread, over a socket of its own.

The next fetch is requested before the caller decodes the messages of this one, and its answer waits in the socket. So
the broker sends while the caller decodes, and the event loop and its thread are not involved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.blocking_channel import BlockingChannel
from raymq.actors.wire.commands.fetch_commands import Fetched, fetch_command, read_epoch, read_fetched
from raymq.client.connection import Connection
from raymq.client.requests.fetch_request import ANSWER_BYTES, ANSWER_SECONDS, answer_seconds
from raymq.client.requests.prefetch_table import PrefetchTable

#: The least time-out to open a socket, however short the caller's time-out is.
_LEAST_CONNECT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class _PendingFetch:
    """A fetch whose answer is pending: a channel and the number of the request.

    `incarnation` is that of the topic to which the requested offset belongs.
    """

    channel: BlockingChannel
    number: int
    incarnation: int | None

    @property
    def is_usable(self) -> bool:
        """Return True if its answer can still arrive."""
        return self.channel.is_open

    def give_up(self) -> None:
        """Discard its answer when it arrives."""
        self.channel.forget(self.number)


class BlockingFetcher:
    """The fetches of one pull consumer, used by one thread at a time."""

    def __init__(
        self,
        mq: Connection,
        session: Callable[[MessageQueue], str],
        epochs: dict[MessageQueue, int],
        incarnations: Mapping[MessageQueue, int],
    ) -> None:
        """Create the fetcher.

        `session`, `epochs` and `incarnations` are those of `PullConsumerEngine`.
        """
        self._mq = mq
        self._epochs = epochs
        self._incarnations = incarnations
        self._session = session
        #: Open channels, by the broker's name.
        self._channels: dict[str, BlockingChannel] = {}
        self._ahead = PrefetchTable(_PendingFetch.give_up, attrgetter("is_usable"))

    def reaches(self, queue: MessageQueue) -> bool:
        """Return True if the queue's broker can be reached, as far as is known locally.

        False on the connection's event loop, which must not block.
        """
        if self._mq.is_on_loop:
            return False
        channel = self._channels.get(queue.broker)
        return (channel is not None and channel.is_open) or self.address(queue) is not None

    def fetch(self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float) -> Fetched | None:
        """Return the records at `offset` within `wait_seconds`, None if there were none.

        If the queue has more records, the next fetch is requested in advance.

        Raises:
            BrokerUnavailable: the broker did not answer within `answer_seconds` more, or there was no connection.
        """
        deadline = time.monotonic() + wait_seconds
        latest = deadline + answer_seconds(wait_seconds)
        part = self._taken(queue, offset, max_messages, latest)
        while part is None:
            known, wait = self._epochs.get(queue), max(0.0, deadline - time.monotonic())
            part = self._answer(queue, self._request(queue, offset, max_messages, wait, latest), latest)
            if self._epochs.get(queue) == known:
                break
        if part is not None and part.error is None and part.next_offset < part.max_offset:
            self._ahead.make_room(queue)
            request = self._request(queue, part.next_offset, max_messages, 0.0, latest)
            self._ahead.put(queue, part.next_offset, max_messages, request)
        return part

    def forget(self, queue: MessageQueue) -> None:
        """Discard the fetch that was requested in advance for a queue, if any."""
        self._ahead.forget(queue)

    def close(self) -> None:
        """Discard all pending fetches and end the channels."""
        self._ahead.clear()
        for channel in self._channels.values():
            self._mq.channels.end(channel)
        self._channels.clear()

    def _taken(self, queue: MessageQueue, offset: int, max_messages: int, latest: float) -> Fetched | None:
        """Return the answer of the matching fetch that was requested in advance.

        Return None if there is none, or if it brought no records or an error: the caller then sends a new fetch.
        """
        request = self._ahead.take(queue, offset, max_messages)
        if request is None:
            return None
        if request.incarnation != self._incarnations.get(queue):  # the consumer has called `seek` since
            request.give_up()
            return None
        part = self._answer(queue, request, latest)
        return None if part is None or part.error is not None else part

    def _request(
        self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float, latest: float
    ) -> _PendingFetch:
        epoch, incarnation = self._epochs.get(queue, 0), self._incarnations.get(queue)
        specs = [FetchSpec(queue.topic, queue.queue_id, offset, epoch=epoch, incarnation=incarnation)]
        command = fetch_command(self._session(queue), specs, max_messages, ANSWER_BYTES, wait_seconds, check_crc=False)
        channel = self._channel(queue, max(_LEAST_CONNECT_SECONDS, wait_seconds / 2))
        return _PendingFetch(channel, channel.write(command, latest - time.monotonic()), incarnation)

    def _answer(self, queue: MessageQueue, request: _PendingFetch, latest: float) -> Fetched | None:
        try:
            answer = request.channel.read(latest - time.monotonic(), request.number)
        except BrokerUnavailable:
            self._mq.loop.call_soon_threadsafe(self._mq.routes.doubt, request.channel.address)
            raise
        parts, epoch = read_fetched(answer, 1), read_epoch(answer)
        if epoch is not None and not (parts and parts[0].error):
            self._epochs[queue] = epoch
        return parts[0] if parts else None

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
