"""Send requests to all brokers, to those of a topic, or to all name servers.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import NO_CLUSTER_HINT, BrokerUnavailable, RayMQError, Timeout, TopicNotFound
from raymq.actors.protocol import TopicRoute
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import retry_while_unavailable

REQUEST_SECONDS: Final = 5.0
#: How long a request is repeated while a broker restarts or its group elects another master: as long as a send.
_PATIENCE_SECONDS: Final = 10.0

_Item = TypeVar("_Item")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


async def gather(items: Iterable[_Item], ask: Callable[[_Item], Awaitable[_T]]) -> list[_T]:
    """Return the result of `ask` for each item; all calls run concurrently."""
    return list(await asyncio.gather(*(ask(item) for item in items)))


async def masters(mq: Connection) -> dict[str, str]:
    """Return the address of every broker by its name, sorted by name.

    Raise BrokerUnavailable if there is none.
    """

    async def once() -> dict[str, str]:
        found = (await mq.routes.cluster()).masters
        if not found:
            raise BrokerUnavailable("cluster", "no broker is registered at the name server", remedy=NO_CLUSTER_HINT)
        return dict(sorted(found.items()))

    return await retry_while_unavailable(once, REQUEST_SECONDS)


async def request_with_retry(
    mq: Connection, address: str, command: Callable[[], Command], broker: str | None = None
) -> Command:
    """Send a request that may be repeated, again while the broker is unreachable.

    It is repeated for `_PATIENCE_SECONDS`; a time-out is not repeated, it raises at once. If `broker` names the broker
    group, each repetition goes to the group's current master.
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


async def request_all(mq: Connection, command: Callable[[], Command]) -> dict[str, Command | RayMQError]:
    """Return each broker's answer or error, by the broker's name."""
    return await request_each(mq, await masters(mq), command)


async def request_each(
    mq: Connection, addresses: Mapping[str, str], command: Callable[[], Command]
) -> dict[str, Command | RayMQError]:
    """Return the answer or error of each of these brokers, by the broker's name."""

    async def ask(broker: str) -> Command | RayMQError:
        try:
            return await request_with_retry(mq, addresses[broker], command, broker)
        except RayMQError as error:
            return error

    return dict(zip(addresses, await gather(addresses, ask), strict=True))


def require_answers(answers: Mapping[str, Command | RayMQError]) -> dict[str, Command]:
    """Return the answers; raise the first error if there is one."""
    for answer in answers.values():
        if isinstance(answer, RayMQError):
            raise answer
    return {broker: answer for broker, answer in answers.items() if isinstance(answer, Command)}


async def request_topic_brokers(mq: Connection, topic: str, command: Callable[[], Command]) -> dict[str, Command]:
    """Return the answers of a topic's brokers, by name.

    Raise TopicNotFound if the topic does not exist, or the first error of a broker.
    """
    addresses = (await mq.routes.readable(topic, fresh=True)).addresses
    return require_answers(await request_each(mq, dict(sorted(addresses.items())), command))


def report_skipped_brokers(what: str, not_asked: Collection[str], *, found: bool) -> None:
    """Log a warning that a search skipped brokers because they are away.

    Raises:
        BrokerUnavailable: nothing was found, and a skipped broker may have it.
    """
    if not_asked and not found:
        raise BrokerUnavailable(", ".join(not_asked), f"not reachable, and no other broker has {what}")
    if not_asked:
        _log.warning("search for %s: skipped brokers that are not reachable: %s", what, ", ".join(not_asked))


async def check_all_updated(mq: Connection, route: TopicRoute, change: str) -> None:
    """Raise BrokerUnavailable if a topic's broker that is away missed a change.

    All other brokers of the topic made the change. Those that are away come back in their former state.

    Raises:
        BrokerUnavailable: there are such brokers.
    """
    away = mq.routes.away(route)
    if not away:
        return
    # a broker that left the route and still runs may only have lost the topic
    living = (await mq.routes.cluster()).masters
    not_told = [broker for broker in away if broker not in living]
    if not_told:
        error = BrokerUnavailable(", ".join(not_told), f"not reachable, so it missed {change}")
        error.remedy = "all other brokers made the change: repeat it when this broker is back"
        raise error


async def request_name_servers(mq: Connection, command: Callable[[], Command]) -> None:
    """Send every name server a request that may be repeated; raise the first error.

    TopicNotFound is ignored: the name server has deleted the topic before, perhaps for a request whose answer was lost.
    """

    async def tell(address: str) -> None:
        with contextlib.suppress(TopicNotFound):
            await request_with_retry(mq, address, command)

    await gather(mq.name_servers, tell)
