"""Send requests to a broker whose address is in the routes of a topic.

Some requests are repeated while the broker is unreachable. Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import CLUSTER_INFO_HINT, BrokerUnavailable, RayMQError
from raymq.actors.wire.connection_pool import EarlyAnswerHandler
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection

#: How long a request is repeated while a broker is unreachable, before a read fails: a restart takes 2 s.
RETRY_TIMEOUT_SECONDS: Final = 30.0

_T = TypeVar("_T")


async def broker_address(mq: Connection, topic: str, broker: str) -> str:
    """Return the address of a broker of `topic`.

    Raise BrokerUnavailable if the broker is not in the topic's route.
    """
    for fresh in (False, True):
        address = (await mq.routes.get(topic, fresh=fresh)).addresses.get(broker)
        if address is not None:
            return address
    raise BrokerUnavailable(broker, f"it is not in the route of topic {topic}", remedy=CLUSTER_INFO_HINT)


async def broker_address_via(mq: Connection, topics: Iterable[str], broker: str) -> str:
    """Return a broker's address from the first route of `topics` that has it.

    A topic that was deleted does not hide its brokers, if another topic has them in its route.

    Raises:
        TopicNotFound, BrokerUnavailable: no route of the topics has it.
    """
    problem: RayMQError = BrokerUnavailable(broker, "no topic is read from this broker")
    for topic in dict.fromkeys(topics):
        try:
            return await broker_address(mq, topic, broker)
        except RayMQError as error:
            problem = error
    raise problem


async def ask(mq: Connection, topic: str, broker: str, command: Command, seconds: float) -> Command:
    """Return the answer of a broker of `topic`, which has `seconds` for it.

    Raises:
        TopicNotFound, BrokerUnavailable: the broker is in no route, or does not answer. Also any error of its answer.
    """
    return await mq.pool.request(await broker_address(mq, topic, broker), command, seconds)


async def request_via_topics(
    mq: Connection,
    topics: Iterable[str],
    broker: str,
    command: Command,
    seconds: float,
    *,
    on_early_answer: EarlyAnswerHandler | None = None,
) -> Command:
    """Send a request as `ask`, by the first of `topics` whose route has the broker.

    `on_early_answer` is called with the answers before the last one.
    """
    return await mq.pool.request(
        await broker_address_via(mq, topics, broker), command, seconds, on_early_answer=on_early_answer
    )


async def retry_while_unavailable(
    attempt: Callable[[], Coroutine[None, None, _T]],
    seconds: float = RETRY_TIMEOUT_SECONDS,
    passing: type[RayMQError] | tuple[type[RayMQError], ...] = BrokerUnavailable,
) -> _T:
    """Repeat an attempt while the broker is unreachable, for up to `seconds`.

    The attempt has to be a read, or another request that may be repeated. `passing` are the errors after which it is
    repeated.
    """
    deadline = time.monotonic() + seconds
    backoff = Backoff(first=0.1, cap=1.0)
    while True:
        try:
            return await attempt()
        except passing:
            wait = backoff.next_delay()
            if time.monotonic() + wait >= deadline:
                raise
            await asyncio.sleep(wait)
