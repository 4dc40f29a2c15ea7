"""The quick way: the first try of a send is made by the thread that sends, all else by the loop's `Sender`.

Where the route is known and the broker connected, there is nothing to wait for but the answer, and a blocking socket
waits for that at half the price; and a large part goes from where it was encoded into the socket, while the event loop
and its thread have no share in it. What a try means, which queue it takes and what follows from its failure is decided
by the same `Sender` and `SendPlan` as on the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.routing import Routes
from raymq.actors.sending.longest_body import READ_BY_ALL_BYTES, limit_of, longest_body
from raymq.actors.sending.send_plan import try_seconds
from raymq.actors.sending.sender import Sender, Sent, SentOne, Sizes, Terms, Tried, address_one
from raymq.actors.wire.channel import SMALL_BYTES, Channel, ChannelPool
from raymq.actors.wire.codes import RequestCode


@dataclass(slots=True)
class Begun:
    """A send that `DirectSender.begin` has begun.

    Attributes:
        channel: where the answer of the first try comes; None if it failed, or was not made.
        tried: how it failed.
    """

    topic: str
    records: bytearray
    sizes: Sizes
    terms: Terms
    began: float
    queue: MessageQueue | None = None
    channel: Channel | None = None
    tried: Tried | None = None


class DirectSender:
    """Thread-safe. `run` runs a coroutine on the event loop of `sender` and waits for it."""

    def __init__(
        self,
        sender: Sender,
        routes: Routes,
        channels: ChannelPool,
        run: Callable[[Coroutine[Any, Any, Sent]], Sent],
    ) -> None:
        self._sender = sender
        self._routes = routes
        self._channels = channels
        self._run = run

    def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; blocks, and must not be called on the loop."""
        return self.finish(self.begin(topic, records, sizes, terms))

    def send_one(self, topic: str, record: bytearray, terms: Terms) -> SentOne:
        """`send` of one record that is not delayed."""
        if len(record) > SMALL_BYTES:
            return self.send(topic, record, size_of(record), terms).one()
        began = time.monotonic()
        tried: Tried | None = None
        chosen = self.chosen(topic, terms)
        if chosen is not None:
            queue, address = chosen
            address_one(record, queue.queue_id)
            try:
                answer = self._channels.ask(address, RequestCode.APPEND_ONE, record, first_share(terms))
                if answer is not None:
                    return self._sender.answered_one(queue, address, answer, time.monotonic() - began)
            except RayMQError as error:
                tried = Tried(queue, error, time.monotonic() - began)
        return self._go_on(began, tried, topic, record, size_of(record), terms).one()

    def begin(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Begun:
        """Write the first try; raises nothing that a send may raise. `finish` must follow, and waits for the outcome.

        Several sends may be begun; those to one queue may overtake each other.
        """
        begun = Begun(topic, records, sizes, terms, time.monotonic())
        chosen = self.chosen(topic, terms)
        if chosen is None:
            return begun
        queue, address = chosen
        if len(records) > READ_BY_ALL_BYTES and longest_body(records, sizes) > limit_of(
            self._routes.known(topic), queue.broker
        ):
            return begun  # with a fresh route it may be different
        begun.queue = queue
        command = self._sender.addressed(queue, records, sizes, terms)
        try:
            begun.channel = self._channels.begin(address, command, first_share(terms))
        except RayMQError as error:
            begun.tried = Tried(queue, error, time.monotonic() - begun.began)
        return begun

    def finish(self, begun: Begun) -> Sent:
        """The outcome; raises as `Sender.send`."""
        queue, channel, terms = begun.queue, begun.channel, begun.terms
        if queue is not None and channel is not None:
            try:
                answer = self._channels.finish(channel, begun.began + first_share(terms) - time.monotonic())
                elapsed = time.monotonic() - begun.began
                return self._sender.answered(queue, channel.address, answer, len(begun.sizes), elapsed)
            except RayMQError as error:
                begun.tried = Tried(queue, error, time.monotonic() - begun.began)
        return self._go_on(begun.began, begun.tried, begun.topic, begun.records, begun.sizes, terms)

    def chosen(self, topic: str, terms: Terms) -> tuple[MessageQueue, str] | None:
        """The queue of a first try and its broker's address; None: the first try has to be made on the loop."""
        route = None if terms.insist_on_ok else self._routes.known(topic)
        if route is None:
            return None
        try:
            return self._sender.ready(route, terms)
        except RayMQError:
            return None  # with a fresh route it may be different

    def _go_on(
        self, began: float, tried: Tried | None, topic: str, records: bytearray, sizes: Sizes, terms: Terms
    ) -> Sent:
        """What is left to try, on the loop."""
        return self._run(self._sender.go_on(terms.plan(began), tried, topic, records, sizes, terms))


def size_of(record: bytearray) -> Sizes:
    """The sizes of one record."""
    return np.array((len(record),), np.int32)


def first_share(terms: Terms) -> float:
    """What the first try may take of the budget, seconds: the rule of `SendPlan.try_timeout`."""
    return try_seconds(terms.timeout, 1 + terms.retries)
