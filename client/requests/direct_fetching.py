"""The quick way: a thread that waits for what it fetches reads it from a socket of its own.

What follows is asked for before the caller looks at what came, and lies in the socket meanwhile: so the broker sends
while the caller decodes, and the event loop and its thread have no share in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.filter.wanted import Wanted
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.channel import Channel
from raymq.actors.wire.commands.fetch import Fetched, fetch_command, read_epoch, read_fetched
from raymq.client.connection import Connection
from raymq.client.requests.early_fetches import EarlyFetches
from raymq.client.requests.fetching import ANSWER_BYTES, ANSWER_SECONDS, answer_seconds

#: What opening a socket may take, however short the time is that its caller has.
_LEAST_CONNECT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Asked:
    """A fetch under way: the number of a request on a channel, for a position in this incarnation of the topic."""

    channel: Channel
    number: int
    incarnation: int | None

    @property
    def is_usable(self) -> bool:
        """Whether its answer can come."""
        return self.channel.is_open

    def give_up(self) -> None:
        """Nobody waits for its answer."""
        self.channel.forget(self.number)


class DirectFetching:
    """The fetches of one pull consumer: for one thread at a time."""

    def __init__(
        self,
        mq: Connection,
        session: Callable[[MessageQueue], str],
        epochs: dict[MessageQueue, int],
        incarnations: Mapping[MessageQueue, int],
    ) -> None:
        """`session`, `epochs` and `incarnations` as those of `Pulling`."""
        self._mq = mq
        self._epochs = epochs
        self._incarnations = incarnations
        self._session = session
        #: By the broker's name.
        self._channels: dict[str, Channel] = {}
        self._ahead = EarlyFetches(_Asked.give_up, attrgetter("is_usable"))

    def reaches(self, queue: MessageQueue) -> bool:
        """Whether there is a way to the queue's broker, as far as can be told without asking anybody."""
        if self._mq.is_on_loop:
            return False
        channel = self._channels.get(queue.broker)
        return (channel is not None and channel.is_open) or self.address(queue) is not None

    def fetch(self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float) -> Fetched | None:
        """What is at `offset` within `wait_seconds`, None if nothing came; what follows it is asked for.

        Raises:
            BrokerUnavailable: it did not answer within `answer_seconds` more, or there was no way.
        """
        deadline = time.monotonic() + wait_seconds
        latest = deadline + answer_seconds(wait_seconds)
        part = self._taken(queue, offset, max_messages, latest)
        while part is None:
            known, wait = self._epochs.get(queue), max(0.0, deadline - time.monotonic())
            part = self._answer(queue, self._ask(queue, offset, max_messages, wait, latest), latest)
            if self._epochs.get(queue) == known:
                break
        if part is not None and part.error is None and part.next_offset < part.max_offset:
            self._ahead.make_room(queue)
            asked = self._ask(queue, part.next_offset, max_messages, 0.0, latest)
            self._ahead.put(queue, part.next_offset, max_messages, asked)
        return part

    def forget(self, queue: MessageQueue) -> None:
        """Give up what was asked for early, if anything."""
        self._ahead.forget(queue)

    def close(self) -> None:
        """Give up everything."""
        self._ahead.clear()
        for channel in self._channels.values():
            self._mq.channels.end(channel)
        self._channels.clear()

    def _taken(self, queue: MessageQueue, offset: int, max_messages: int, latest: float) -> Fetched | None:
        """What was asked for early, if it is this; None also if it brought nothing: then it has to be asked for now."""
        asked = self._ahead.take(queue, offset, max_messages)
        if asked is None:
            return None
        if asked.incarnation != self._incarnations.get(queue):  # the queue was sought since
            asked.give_up()
            return None
        part = self._answer(queue, asked, latest)
        return None if part is None or part.error is not None else part

    def _ask(self, queue: MessageQueue, offset: int, max_messages: int, wait_seconds: float, latest: float) -> _Asked:
        epoch, incarnation = self._epochs.get(queue, 0), self._incarnations.get(queue)
        wanted = [Wanted(queue.topic, queue.queue_id, offset, epoch=epoch, incarnation=incarnation)]
        command = fetch_command(self._session(queue), wanted, max_messages, ANSWER_BYTES, wait_seconds, check_crc=False)
        channel = self._channel(queue, max(_LEAST_CONNECT_SECONDS, wait_seconds / 2))
        return _Asked(channel, channel.write(command, latest - time.monotonic()), incarnation)

    def _answer(self, queue: MessageQueue, asked: _Asked, latest: float) -> Fetched | None:
        try:
            answer = asked.channel.read(latest - time.monotonic(), asked.number)
        except BrokerUnavailable:
            self._mq.loop.call_soon_threadsafe(self._mq.routes.doubt, asked.channel.address)
            raise
        parts, epoch = read_fetched(answer, 1), read_epoch(answer)
        if epoch is not None and not (parts and parts[0].error):
            self._epochs[queue] = epoch
        return parts[0] if parts else None

    def _channel(self, queue: MessageQueue, seconds: float) -> Channel:
        """The one to the queue's broker; one that is opened has so long, and the loop's connection what is left."""
        channel = self._channels.get(queue.broker)
        if channel is not None:
            moved = self.address(queue) not in (None, channel.address)
            if not moved and channel.is_open and (channel.is_awaited or channel.is_quiet):
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
        """Where the queue's broker listens, if it is known and connected to."""
        route = self._mq.routes.known(queue.topic)
        address = None if route is None else route.addresses.get(queue.broker)
        return address if address is not None and self._mq.pool.is_connected(address) else None
