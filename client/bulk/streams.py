"""Streams over the brokers: the plans of a query's batches, on the home of the stream's name, and the queues' bounds.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from raymq.actors.errors import BrokerUnavailable, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.protocol import PERM_READ, MessageQueue
from raymq.actors.wire.commands import stream_plans as wire
from raymq.actors.wire.commands.stream_plans import PlansOfQuery, TopicBounds
from raymq.client.bulk.home import REMEDY, ask_home, is_forgotten, unheard
from raymq.client.connection import Connection
from raymq.client.requests.asking import ask, patiently
from raymq.client.requests.fan_out import masters

#: What `home_of` calls the keys of streams.
KIND: Final = "stream"
#: A topic on a broker.
Origin = tuple[str, str]

_REQUEST_SECONDS: Final = 10.0


class PlanRegister:
    """The plans of one stream's queries, on the broker that is its home. It is waited for while it restarts."""

    def __init__(self, mq: Connection, stream: str, home: str) -> None:
        self._mq = mq
        self._stream = stream
        self._home = home

    async def kept(self, query: str | None) -> PlansOfQuery:
        """The plans of a query's last batches; without one, of the query that was planned last.

        Raises:
            BrokerUnavailable: the home did not come back in time. Else what it refuses with.
        """
        command = wire.stream_plans_command(self._stream, query)
        answer = await patiently(lambda: ask_home(self._mq, self._home, command, _REQUEST_SECONDS))
        return wire.read_stream_plans(answer)

    async def plan(self, query: str, batch: int, plan: bytes) -> bytes:
        """Plan a batch, unless it is planned: the plan that stands. Raises as `kept`."""
        command = wire.plan_batch_command(self._stream, query, batch, plan)
        answer = await patiently(lambda: ask_home(self._mq, self._home, command, _REQUEST_SECONDS))
        return wire.read_standing(answer)


async def bounds(
    mq: Connection, topics: Iterable[str], epochs: Mapping[Origin, int], seconds: float, *, skip_missing: bool = False
) -> dict[Origin, TopicBounds]:
    """What the queues of topics hold, on every broker that has them or is named in `epochs`, but for those that are
    gone for good, as all others were told (`Admin.forget_broker`, `raymq broker drain --remove`).

    Args:
        epochs: the recovery epochs that are known. Brokers that are away are waited for, these too.
        seconds: for how long.
        skip_missing: leave out topics that do not exist.

    Raises:
        TopicNotFound, PermissionDenied: a broker says so. BrokerUnavailable: one did not come back in time.
    """
    names = list(topics)
    return await patiently(lambda: _bounds(mq, names, epochs, skip_missing=skip_missing), seconds)


async def _bounds(
    mq: Connection, topics: list[str], epochs: Mapping[Origin, int], *, skip_missing: bool
) -> dict[Origin, TopicBounds]:
    if topics and not epochs and (brokers := await unheard(mq)):
        reason = "it is away, and a name server that was just started does not know what it has"
        raise BrokerUnavailable(", ".join(brokers), reason, remedy=REMEDY)
    addresses: dict[Origin, str] = {}
    away: set[Origin] = set()
    for topic in topics:
        try:
            route = await mq.routes.readable(topic, fresh=not epochs)  # who begins knows of nobody by anything else
        except TopicNotFound:
            if not skip_missing:
                raise
            continue
        addresses |= {(topic, broker): at for broker, at in route.addresses.items()}
        away |= {(topic, each.data.broker) for each in route.away if each.data.perm & PERM_READ}
    if lacking := (away | epochs.keys()) - addresses.keys():
        known = await masters(mq)
        for origin in lacking:
            if origin[1] in known:
                addresses[origin] = known[origin[1]]
            elif origin in away or not await is_forgotten(mq, origin[1]):
                raise BrokerUnavailable(origin[1], f"it has queues of {origin[0]}, and no name server knows it now")

    async def ask(origin: Origin) -> TopicBounds | None:
        try:
            command = wire.topic_bounds_command(origin[0], epochs.get(origin, 0))
            return wire.read_topic_bounds(await mq.pool.request(addresses[origin], command, _REQUEST_SECONDS))
        except RayMQError as error:
            mq.routes.outdate(origin[0])
            if skip_missing and isinstance(error, TopicNotFound):
                return None
            raise

    answers = await asyncio.gather(*map(ask, addresses))
    return {origin: each for origin, each in zip(addresses, answers, strict=True) if each is not None}


async def kept_of(mq: Connection, queue: MessageQueue, epoch: int) -> int | None:
    """Up to which offset a queue is what was read under that recovery epoch; None: all of it. Raises as `ask`."""
    command = wire.topic_bounds_command(queue.topic, epoch)
    told = wire.read_topic_bounds(await ask(mq, queue.topic, queue.broker, command, _REQUEST_SECONDS))
    each = told.queues.get(queue.queue_id)
    return None if each is None else each.kept


def bounds_of(found: Mapping[Origin, TopicBounds], queue: MessageQueue) -> tuple[int, int]:
    """A queue's minimum and maximum offset, of what `bounds` has found; QueueNotFound."""
    of_topic = found.get((queue.topic, queue.broker))
    each = None if of_topic is None else of_topic.queues.get(queue.queue_id)
    if each is None:
        raise QueueNotFound(f"{queue} is not there")
    return each.low, each.high
