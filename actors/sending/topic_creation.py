"""Create a topic by the first message to it, where the cluster allows that.

It runs on the event loop of the connection pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from raymq.actors.errors import BrokerUnavailable, TopicExists, TopicNotFound, topic_not_found
from raymq.actors.naming import AUTO_CREATE_TOPIC, AUTO_CREATED_QUEUES
from raymq.actors.protocol import TopicRoute
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.headers.admin_headers import UpdateAndCreateTopic
from raymq.storage.errors import number_text


async def auto_create_topic(pool: ConnectionPool, routes: RouteCache, topic: str, timeout: float) -> TopicRoute:
    """Create a topic on every broker that allows auto-creation, and return its route.

    The topic is created everywhere before the first message is sent. If it were created broker by broker, a sharding
    key would change its queue meanwhile.

    Raises:
        TopicNotFound: the cluster does not allow auto-creation.
        BrokerUnavailable: no broker that allows it answers within `timeout` seconds.
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
        except TopicExists:  # another client was faster, with other settings
            return None
        except BrokerUnavailable as error:
            return error
        return None

    failures = await asyncio.gather(*(make(address) for address in model.addresses.values()))
    if failures and all(failures):
        raise next(failure for failure in failures if failure is not None)
    return await routes.get(topic, fresh=True, timeout=deadline - loop.time())


#: Creates a topic within so many seconds, and returns its route.
CreateTopic = Callable[[str, float], Awaitable[TopicRoute]]


class TopicCreator:
    """Topics that are being created, each once for all callers that wait for it.

    Each caller waits for its own time-out.
    """

    def __init__(self, make: CreateTopic) -> None:
        self._make = make
        self._making: dict[str, asyncio.Future[TopicRoute]] = {}

    async def made(self, topic: str, timeout: float) -> TopicRoute:
        """Create the topic, or wait until it is created, and return its route.

        Raises:
            TopicNotFound: the cluster does not allow auto-creation.
            BrokerUnavailable: the topic was not created within `timeout` seconds; no message was sent.
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
                if not begun and loop.time() < deadline:  # the caller that began the creation had less time
                    continue
                reason = f"not created within {number_text(timeout, 3)} s" + (f": {error}" if str(error) else "")
                raise BrokerUnavailable(f"topic {topic}", reason) from error

    def _ended(self, topic: str, making: asyncio.Future[TopicRoute]) -> None:
        del self._making[topic]
        if not making.cancelled():
            making.exception()  # all callers may have given up: without this call asyncio would complain
