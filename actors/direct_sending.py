"""The quick way of a small send: its first try is made by the thread that sends, all else by the loop's `Sender`.

Where the route is known and the broker connected, there is nothing to wait for but the answer, and a blocking socket
waits for that at half the price. What a try means, which queue it takes and what follows from its failure is decided by
the same `Sender` and `SendPlan` as on the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from raymq.actors.core.producing import SendPlan
from raymq.actors.errors import RayMQError
from raymq.actors.routing import Routes
from raymq.actors.sending import Sender, Sent, Sizes, Terms, Tried
from raymq.actors.wire.channel import ChannelPool
from raymq.actors.wire.connection import ConnectionPool

#: Above this the changes of thread cost little beside the copying, which the loop's connection does better.
_SMALL_BYTES: Final = 64 * 1024


class DirectSender:
    """Thread-safe. `run` runs a coroutine on the event loop of `sender` and waits for it."""

    def __init__(
        self,
        sender: Sender,
        pool: ConnectionPool,
        routes: Routes,
        channels: ChannelPool,
        run: Callable[[Coroutine[Any, Any, Sent]], Sent],
    ) -> None:
        self._sender = sender
        self._pool = pool
        self._routes = routes
        self._channels = channels
        self._run = run

    def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; blocks, and must not be called on the loop."""
        plan = SendPlan(time.monotonic, terms.timeout, terms.retries)
        tried = None
        if len(records) <= _SMALL_BYTES and not terms.insist_on_ok:
            tried = self._try(plan, topic, records, sizes, terms)
        if isinstance(tried, Sent):
            return tried
        return self._run(self._sender.go_on(plan, tried, topic, records, sizes, terms))

    def _try(self, plan: SendPlan, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent | Tried | None:
        """The first try; None if it was not made, because it has to wait for something else than the answer."""
        route = self._routes.known(topic)
        if route is None:
            return None
        try:
            queue = self._sender.choose(route, terms, None)
        except RayMQError:
            return None  # with a fresh route it may be different
        address = route.addresses[queue.broker]
        if not self._pool.is_connected(address):
            return None
        command = self._sender.addressed(queue, address, records, sizes, terms)
        began = time.monotonic()
        try:
            answer = self._channels.request(address, command, plan.try_timeout())
            return None if answer is None else self._sender.answered(queue, address, answer, time.monotonic() - began)
        except RayMQError as error:
            return Tried(queue, error, time.monotonic() - began)
