"""Store the plans of a stream's batches, and query the offsets of queues.

The plans are on the coordinator of the stream's name. Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from raymq.actors.errors import BrokerUnavailable, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.protocol import PERM_READ, MessageQueue
from raymq.actors.wire.commands import stream_plan_commands as wire
from raymq.actors.wire.commands.stream_plan_commands import QueryPlans, TopicBounds
from raymq.client.bulk.coordinator_lookup import REMEDY, is_forgotten, request_named_broker, unknown_brokers
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import ask, retry_while_unavailable
from raymq.client.requests.fan_out import masters

#: The kind of a stream's key for `ensure_coordinator`.
STREAM_KIND: Final = "stream"
#: The name of a topic and that of a broker.
BrokerTopic = tuple[str, str]

_REQUEST_SECONDS: Final = 10.0


class BatchPlanStore:
    """The plans of one stream's queries, on the stream's coordinator.

    `coordinator` is the name of its broker. Requests are repeated while it restarts.
    """

    def __init__(self, mq: Connection, stream: str, coordinator: str) -> None:
        self._mq = mq
        self._stream = stream
        self._coordinator = coordinator

    async def kept(self, query: str | None) -> QueryPlans:
        """Return the plans of a query's last batches.

        If `query` is None, they are those of the query that was planned last.

        Raises:
            BrokerUnavailable: the coordinator did not come back in time. Also any error of its answer.
        """
        command = wire.stream_plans_command(self._stream, query)
        answer = await retry_while_unavailable(
            lambda: request_named_broker(self._mq, self._coordinator, command, _REQUEST_SECONDS)
        )
        return wire.read_stream_plans(answer)

    async def plan(self, query: str, batch: int, plan: bytes) -> bytes:
        """Store the plan of a batch unless there is one, and return the stored plan.

        Raise as `kept`.
        """
        command = wire.plan_batch_command(self._stream, query, batch, plan)
        answer = await retry_while_unavailable(
            lambda: request_named_broker(self._mq, self._coordinator, command, _REQUEST_SECONDS)
        )
        return wire.read_stored_plan(answer)


async def bounds(
    mq: Connection,
    topics: Iterable[str],
    epochs: Mapping[BrokerTopic, int],
    seconds: float,
    *,
    skip_missing: bool = False,
) -> dict[BrokerTopic, TopicBounds]:
    """Return the minimum and maximum offsets of the topics' queues, by topic and broker.

    The brokers are those that have the topics or are named in `epochs`, except brokers that are permanently gone, as
    all others have recorded (`Admin.forget_broker`, `raymq broker drain --remove`).

    Args:
        epochs: the recovery epochs that the caller has. Their brokers, too, are waited for while they are away.
        seconds: the time to wait for brokers that are away.
        skip_missing: leave out topics that do not exist.

    Raises:
        TopicNotFound, PermissionDenied: an error that a broker returned.
        BrokerUnavailable: a broker did not come back in time.
    """
    names = list(topics)
    return await retry_while_unavailable(lambda: _bounds(mq, names, epochs, skip_missing=skip_missing), seconds)


async def _bounds(
    mq: Connection, topics: list[str], epochs: Mapping[BrokerTopic, int], *, skip_missing: bool
) -> dict[BrokerTopic, TopicBounds]:
    if topics and not epochs and (brokers := await unknown_brokers(mq)):
        reason = "not reachable, and a name server that was just started has no record of its topics"
        raise BrokerUnavailable(", ".join(brokers), reason, remedy=REMEDY)
    addresses: dict[BrokerTopic, str] = {}
    away: set[BrokerTopic] = set()
    for topic in topics:
        try:
            # without epochs the route is the only source of the brokers
            route = await mq.routes.readable(topic, fresh=not epochs)
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
                raise BrokerUnavailable(origin[1], f"it has queues of {origin[0]}, but no name server lists it now")

    async def ask(origin: BrokerTopic) -> TopicBounds | None:
        try:
            command = wire.topic_bounds_command(origin[0], epochs.get(origin, 0))
            return wire.read_topic_bounds(await mq.pool.request(addresses[origin], command, _REQUEST_SECONDS))
        except RayMQError as error:
            mq.routes.invalidate(origin[0])
            if skip_missing and isinstance(error, TopicNotFound):
                return None
            raise

    answers = await asyncio.gather(*map(ask, addresses))
    return {origin: each for origin, each in zip(addresses, answers, strict=True) if each is not None}


async def retained_end(mq: Connection, queue: MessageQueue, epoch: int) -> int | None:
    """Return the offset up to which a queue is unchanged since that recovery epoch.

    None: all of it is unchanged. Raise as `ask`.
    """
    command = wire.topic_bounds_command(queue.topic, epoch)
    topic_bounds = wire.read_topic_bounds(await ask(mq, queue.topic, queue.broker, command, _REQUEST_SECONDS))
    each = topic_bounds.queues.get(queue.queue_id)
    return None if each is None else each.kept


def queue_bounds(found: Mapping[BrokerTopic, TopicBounds], queue: MessageQueue) -> tuple[int, int]:
    """Return a queue's minimum and maximum offset from the result of `bounds`.

    Raise QueueNotFound if the queue is not in it.
    """
    of_topic = found.get((queue.topic, queue.broker))
    each = None if of_topic is None else of_topic.queues.get(queue.queue_id)
    if each is None:
        raise QueueNotFound(f"{queue} does not exist")
    return each.low, each.high
