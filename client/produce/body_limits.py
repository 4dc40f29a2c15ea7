"""Check message bodies against the limits of the topic's brokers before sending.

The limits come from the routes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from raymq.actors.errors import InvalidInput, RayMQError, TopicNotFound
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.body_size import ALWAYS_READABLE_BYTES, body_too_long, check_body_size
from raymq.actors.sending.send_plan import SendParameters, try_seconds
from raymq.actors.sending.topic_creation import auto_create_topic
from raymq.client.connection import Connection
from raymq.client.message import Message
from raymq.client.produce.message_encoder import BatchParts

_body: Final = attrgetter("body")


class BodyLimits:
    """The body limits of the topics of one connection.

    A broker or name server that does not report its limit rejects longer bodies itself.
    """

    def __init__(self, mq: Connection) -> None:
        self._mq = mq

    def known(self, topic: str, queue: MessageQueue | None = None) -> int | None:
        """Return the longest body that every broker of `topic` accepts, or that of `queue`.

        Return None if it is not known. Any thread may call this.
        """
        route = self._mq.routes.known(topic)
        return None if route is None else route.max_body_bytes(None if queue is None else queue.broker)

    async def learn(self, topic: str, queue: MessageQueue | None, timeout: float, *, fresh: bool = False) -> int | None:
        """Return `known`, after a request for the route if that is necessary.

        The route is requested if none is known, or if `fresh` is set. Runs on the loop. A topic that the brokers create
        automatically is created. If no name server has the topic or responds within `timeout` seconds, return None; the
        send itself then raises the error.
        """
        routes = self._mq.routes
        try:
            try:
                await routes.get(topic, fresh=fresh, timeout=timeout)
            except TopicNotFound:
                await auto_create_topic(self._mq.pool, routes, topic, timeout)
        except RayMQError:
            return None
        return self.known(topic, queue)

    def check(self, topic: str, parts: BatchParts, terms: SendParameters) -> SendParameters:
        """Reject a batch or a table with an oversized body before any part is sent.

        If the limit is not known, it is requested only if there are several parts, since a single part is stored or
        refused as a whole. If a body is longer than the known limit, the limit is requested again, since it may have
        been raised. These requests are not made if the caller is on the loop.

        Returns:
            the terms, with the remaining time.

        Raises:
            InvalidInput: a body is longer than the brokers allow.
        """
        limit = self.known(topic, terms.queue)
        is_new = parts.are_several and self._mq.routes.known(topic) is None
        if not self._mq.is_on_loop and (is_new or _is_long(parts.longest_body, limit)):
            return self._mq.run(self.acheck(topic, parts, terms))
        _refuse(parts.longest_body, limit)
        return terms

    async def acheck(self, topic: str, parts: BatchParts, terms: SendParameters) -> SendParameters:
        """Do `check` on the loop."""
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

    async def check_one(self, message: Message, terms: SendParameters) -> None:
        """Raise InvalidInput for a single message that is longer than its brokers allow.

        This checks only messages so long that brokers would not even read them. It is used by sends whose outcome is
        not reported. Runs on the loop.
        """
        longest = len(message.body)
        if longest > ALWAYS_READABLE_BYTES:
            limit = await self.learn(message.topic, terms.queue, terms.timeout)
            if _is_long(longest, limit):
                _refuse(longest, await self.learn(message.topic, terms.queue, terms.timeout, fresh=True))


def find_oversized(messages: Sequence[Message], limit: int) -> dict[int, InvalidInput]:
    """Return the errors of the messages whose body is longer than `limit`, by index."""
    return {
        place: body_too_long(size, limit) for place, size in enumerate(map(len, map(_body, messages))) if size > limit
    }


def _is_long(longest: int, limit: int | None) -> bool:
    return limit is not None and longest > limit


def _refuse(longest: int, limit: int | None) -> None:
    if limit is not None:
        check_body_size(longest, limit)
