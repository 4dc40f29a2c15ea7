"""Making a topic by sending to it, where the cluster allows that. Runs on the event loop of the pool."""

from __future__ import annotations

import asyncio

from raymq.actors.errors import BrokerUnavailable, TopicExists, TopicNotFound
from raymq.actors.naming import AUTO_CREATE_TOPIC, AUTO_CREATED_QUEUES
from raymq.actors.protocol import TopicRoute
from raymq.actors.routing import Routes
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.headers.admin import UpdateAndCreateTopic


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
        raise TopicNotFound(f"topic {topic} does not exist", remedy="create it with Admin.create_topic") from None

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
