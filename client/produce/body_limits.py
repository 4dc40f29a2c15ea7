"""How long a body may be on the brokers of a topic: what their routes say, looked at before anything is sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from raymq.actors.errors import InvalidInput, RayMQError, TopicNotFound
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.longest_body import READ_BY_ALL_BYTES, refuse_longer, too_long
from raymq.actors.sending.send_plan import try_seconds
from raymq.actors.sending.sender import Terms
from raymq.actors.sending.topic_creation import make_topic
from raymq.client.connection import Connection
from raymq.client.message import Message
from raymq.client.produce.encoding import BatchParts

_body: Final = attrgetter("body")


class BodyLimits:
    """Of the topics of one connection. A broker or name server that does not say its limit refuses by itself."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq

    def known(self, topic: str, queue: MessageQueue | None = None) -> int | None:
        """The longest body that every broker of `topic` takes, or that of `queue`; None where it is not known.

        Any thread.
        """
        route = self._mq.routes.known(topic)
        return None if route is None else route.max_body_bytes(None if queue is None else queue.broker)

    async def learn(self, topic: str, queue: MessageQueue | None, timeout: float, *, fresh: bool = False) -> int | None:
        """`known`, asked of a name server where no route is known, or where it shall be `fresh`. On the loop.

        A topic that sending makes is made. Where nobody has the topic, or answers within `timeout` seconds, it is not
        known; the send itself says why.
        """
        routes = self._mq.routes
        try:
            try:
                await routes.get(topic, fresh=fresh, timeout=timeout)
            except TopicNotFound:
                await make_topic(self._mq.pool, routes, topic, timeout)
        except RayMQError:
            return None
        return self.known(topic, queue)

    def check(self, topic: str, parts: BatchParts, terms: Terms) -> Terms:
        """Refuse a batch or a table before any of it is sent; the terms with what is left of their time.

        Where the limit is not known it is asked for only if there are several parts: a single one is stored whole or
        refused whole. Where a body is longer it is asked for anew: it may have been raised. Not on the loop.

        Raises:
            InvalidInput: a body is longer than the brokers allow.
        """
        limit = self.known(topic, terms.queue)
        is_new = parts.are_several and self._mq.routes.known(topic) is None
        if not self._mq.is_on_loop and (is_new or _is_long(parts.longest_body, limit)):
            return self._mq.run(self.acheck(topic, parts, terms))
        _refuse(parts.longest_body, limit)
        return terms

    async def acheck(self, topic: str, parts: BatchParts, terms: Terms) -> Terms:
        """`check`, on the loop."""
        is_long = _is_long(parts.longest_body, self.known(topic, terms.queue))
        is_new = parts.are_several and self._mq.routes.known(topic) is None and terms.timeout > 0.0
        if not is_long and not is_new:
            return terms
        began = time.monotonic()
        seconds = try_seconds(terms.timeout, 1 + terms.retries)
        _refuse(parts.longest_body, await self.learn(topic, terms.queue, seconds, fresh=is_long))
        if self._mq.routes.known(topic) is not None:
            return terms
        return replace(terms, timeout=max(0.0, terms.timeout - (time.monotonic() - began)))

    async def check_one(self, message: Message, terms: Terms) -> None:
        """InvalidInput for a single message that is longer than its brokers allow, and so long that they would not
        even read it: for a send whose outcome nobody is told. On the loop.
        """
        longest = len(message.body)
        if longest > READ_BY_ALL_BYTES:
            limit = await self.learn(message.topic, terms.queue, terms.timeout)
            if _is_long(longest, limit):
                _refuse(longest, await self.learn(message.topic, terms.queue, terms.timeout, fresh=True))


def too_long_ones(messages: Sequence[Message], limit: int) -> dict[int, InvalidInput]:
    """The messages whose body is longer than `limit`, by their places, each with its error."""
    return {place: too_long(size, limit) for place, size in enumerate(map(len, map(_body, messages))) if size > limit}


def _is_long(longest: int, limit: int | None) -> bool:
    return limit is not None and longest > limit


def _refuse(longest: int, limit: int | None) -> None:
    if limit is not None:
        refuse_longer(longest, limit)
