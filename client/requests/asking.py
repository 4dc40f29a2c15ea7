"""How a broker is asked: where it listens, by the routes of a topic of it, one request, and that again and again.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import WHO_IS_THERE, BrokerUnavailable, RayMQError
from raymq.actors.wire.connection import OnEarly
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection

#: How long an unreachable broker is asked again before a read gives up: a restart takes 2 s.
PATIENCE_SECONDS: Final = 30.0

_T = TypeVar("_T")


async def address_of(mq: Connection, topic: str, broker: str) -> str:
    """Where a broker of `topic` listens; BrokerUnavailable if the routes do not know it."""
    for fresh in (False, True):
        address = (await mq.routes.get(topic, fresh=fresh)).addresses.get(broker)
        if address is not None:
            return address
    raise BrokerUnavailable(broker, f"it is in no route of {topic}", remedy=WHO_IS_THERE)


async def address_among(mq: Connection, topics: Iterable[str], broker: str) -> str:
    """Where a broker listens, by whichever of `topics` has it in its route: one that is gone hides no broker.

    Raises:
        TopicNotFound, BrokerUnavailable: no route of them knows it.
    """
    problem: RayMQError = BrokerUnavailable(broker, "no topic is read there")
    for topic in dict.fromkeys(topics):
        try:
            return await address_of(mq, topic, broker)
        except RayMQError as error:
            problem = error
    raise problem


async def ask(mq: Connection, topic: str, broker: str, command: Command, seconds: float) -> Command:
    """The answer of a broker of `topic`, which may take `seconds` for it.

    Raises:
        TopicNotFound, BrokerUnavailable: the routes do not know it, or it does not answer. Else what it refuses with.
    """
    return await mq.pool.request(await address_of(mq, topic, broker), command, seconds)


async def ask_among(
    mq: Connection,
    topics: Iterable[str],
    broker: str,
    command: Command,
    seconds: float,
    *,
    on_early: OnEarly | None = None,
) -> Command:
    """`ask` by whichever of `topics` knows the broker; `on_early` is told the answers before the last one."""
    return await mq.pool.request(await address_among(mq, topics, broker), command, seconds, on_early=on_early)


async def patiently(
    attempt: Callable[[], Coroutine[None, None, _T]],
    seconds: float = PATIENCE_SECONDS,
    passing: type[RayMQError] | tuple[type[RayMQError], ...] = BrokerUnavailable,
) -> _T:
    """Repeat what only reads (or may be repeated) while the broker is unreachable, for up to `seconds`.

    `passing` are the errors behind which it is repeated.
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
