"""Making a topic by sending to it, where the cluster allows that. Runs on the event loop of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from raymq.actors.errors import BrokerUnavailable, TopicExists, TopicNotFound, topic_not_found
from raymq.actors.naming import AUTO_CREATE_TOPIC, AUTO_CREATED_QUEUES
from raymq.actors.protocol import TopicRoute
from raymq.actors.routing import Routes
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.headers.admin import UpdateAndCreateTopic
from raymq.storage.errors import number_text


async def make_topic(pool: ConnectionPool, routes: Routes, topic: str, timeout: float) -> TopicRoute:
    """The route of a topic that nobody had, made on every broker whose first message may do so.

    It is made everywhere before the first message goes anywhere: if it grew broker by broker, a sharding key would
    change its queue on the way.

    Raises:
        TopicNotFound: messages may not make topics here.
        BrokerUnavailable: no broker that may make it answers within `timeout` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    try:
        model = await routes.get(AUTO_CREATE_TOPIC, timeout=timeout)
    except TopicNotFound:
        raise topic_not_found(topic) from None

    async def make(address: str) -> BrokerUnavailable | None:
        command = UpdateAndCreateTopic(topic, AUTO_CREATED_QUEUES, AUTO_CREATED_QUEUES, exclusive=True).command()
        try:
            await pool.request(address, command, deadline - loop.time())
        except TopicExists:  # somebody else was faster, and chose otherwise
            return None
        except BrokerUnavailable as error:
            return error
        return None

    failures = await asyncio.gather(*(make(address) for address in model.addresses.values()))
    if failures and all(failures):
        raise next(failure for failure in failures if failure is not None)
    return await routes.get(topic, fresh=True, timeout=deadline - loop.time())


#: Makes a topic within so many seconds, and returns its route.
Make = Callable[[str, float], Awaitable[TopicRoute]]


class TopicsUnderWay:
    """Topics that are being made: each once for all who wait for it, and each of them for as long as he has time."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._making: dict[str, asyncio.Future[TopicRoute]] = {}

    async def made(self, topic: str, timeout: float) -> TopicRoute:
        """The route of the topic, when it is made.

        Raises:
            TopicNotFound: messages may not make topics here.
            BrokerUnavailable: it is not made within `timeout` seconds; no message went anywhere.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            making = self._making.get(topic)
            begun = making is None
            if making is None:
                making = self._making[topic] = asyncio.ensure_future(self._make(topic, deadline - loop.time()))
                making.add_done_callback(partial(self._ended, topic))
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(making)
            except (BrokerUnavailable, TimeoutError) as error:
                if not begun and loop.time() < deadline:  # whoever began it had less time
                    continue
                reason = f"it is not made within {number_text(timeout, 3)} s" + (f": {error}" if str(error) else "")
                raise BrokerUnavailable(f"topic {topic}", reason) from error

    def _ended(self, topic: str, making: asyncio.Future[TopicRoute]) -> None:
        del self._making[topic]
        if not making.cancelled():
            making.exception()  # all who waited may have given up: somebody has to look, or asyncio complains
