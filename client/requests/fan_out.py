"""Asking all brokers, those of a topic, or all name servers at once. Runs on the connection's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import NOBODY_ANSWERS, BrokerUnavailable, RayMQError, Timeout, TopicNotFound
from raymq.actors.protocol import TopicRoute
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.asking import patiently

REQUEST_SECONDS: Final = 5.0
#: A broker that restarts, or whose group elects another master, is waited for as long as by a send.
_PATIENCE_SECONDS: Final = 10.0

_Item = TypeVar("_Item")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


async def gather(items: Iterable[_Item], ask: Callable[[_Item], Awaitable[_T]]) -> list[_T]:
    """What `ask` answers for each, asked together."""
    return list(await asyncio.gather(*(ask(item) for item in items)))


async def masters(mq: Connection) -> dict[str, str]:
    """Every broker's name and address, sorted; BrokerUnavailable if there is none."""

    async def once() -> dict[str, str]:
        found = (await mq.routes.cluster()).masters
        if not found:
            raise BrokerUnavailable("cluster", "no broker is registered at the name server", remedy=NOBODY_ANSWERS)
        return dict(sorted(found.items()))

    return await patiently(once, REQUEST_SECONDS)


async def ask_broker(
    mq: Connection, address: str, command: Callable[[], Command], broker: str | None = None
) -> Command:
    """Ask what may be asked twice, again while the broker is unreachable, for a while; not one that hangs.

    With its name `broker` it is asked again where its group's master is by then.
    """
    deadline, backoff = time.monotonic() + _PATIENCE_SECONDS, Backoff(first=0.1, cap=1.0)
    while True:
        try:
            return await mq.pool.request(address, command(), REQUEST_SECONDS, eager=True)
        except BrokerUnavailable as error:
            wait = backoff.next_delay()
            if isinstance(error, Timeout) or time.monotonic() + wait >= deadline:
                raise
        await asyncio.sleep(wait)
        if broker is not None:
            with contextlib.suppress(RayMQError):
                address = (await mq.routes.cluster()).masters.get(broker, address)


async def ask_all(mq: Connection, command: Callable[[], Command]) -> dict[str, Command | RayMQError]:
    """Each broker's answer or error, by its name."""
    return await ask_each(mq, await masters(mq), command)


async def ask_each(
    mq: Connection, addresses: Mapping[str, str], command: Callable[[], Command]
) -> dict[str, Command | RayMQError]:
    """The answer or error of each of these brokers, by its name."""

    async def ask(broker: str) -> Command | RayMQError:
        try:
            return await ask_broker(mq, addresses[broker], command, broker)
        except RayMQError as error:
            return error

    return dict(zip(addresses, await gather(addresses, ask), strict=True))


def unless_refused(answers: Mapping[str, Command | RayMQError]) -> dict[str, Command]:
    """The answers; the first error is raised instead."""
    for answer in answers.values():
        if isinstance(answer, RayMQError):
            raise answer
    return {broker: answer for broker, answer in answers.items() if isinstance(answer, Command)}


async def ask_brokers_of(mq: Connection, topic: str, command: Callable[[], Command]) -> dict[str, Command]:
    """The answers of the brokers of a topic; TopicNotFound, and the first error of a broker."""
    addresses = (await mq.routes.readable(topic, fresh=True)).addresses
    return unless_refused(await ask_each(mq, dict(sorted(addresses.items())), command))


def check_all_asked(what: str, not_asked: Collection[str], *, found: bool) -> None:
    """Say that a search has left brokers out since they are away.

    Raises:
        BrokerUnavailable: nothing was found: nobody knows whether it is there.
    """
    if not_asked and not found:
        raise BrokerUnavailable(", ".join(not_asked), f"away, and no other broker has {what}")
    if not_asked:
        _log.warning("%s: brokers that are away were not asked: %s", what, ", ".join(not_asked))


async def check_all_told(mq: Connection, route: TopicRoute, change: str) -> None:
    """Say that a change was made on all brokers of a topic but those that are away, which come back as they were.

    Raises:
        BrokerUnavailable: there are such brokers.
    """
    away = mq.routes.away(route)
    if not away:
        return
    living = (await mq.routes.cluster()).masters  # one of them may only not have the topic any more
    not_told = [broker for broker in away if broker not in living]
    if not_told:
        error = BrokerUnavailable(", ".join(not_told), f"away, and not told {change}")
        error.remedy = "all others were: do it again when it is back"
        raise error


async def ask_name_servers(mq: Connection, command: Callable[[], Command]) -> None:
    """Tell every name server what it may be told twice; the first error is raised.

    One that does not know the topic has done so already, perhaps by a request whose answer was lost.
    """

    async def tell(address: str) -> None:
        with contextlib.suppress(TopicNotFound):
            await ask_broker(mq, address, command)

    await gather(mq.name_servers, tell)
