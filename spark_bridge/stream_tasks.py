"""The tasks of a stream in Spark's Python workers.

Each task gets or creates the plan of the batch, and reads a share of it. Spark 3.5 has no sources in Python. So Spark's
own source `rate-micro-batch` emits the same number of rows for each batch, the tickets. The first task of a batch plans
what each ticket stands for. The brokers store the plan under Spark's own ids of the query and the batch, which every
task receives. A batch that is run again, by any driver, finds its plan and reads the same messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import stream_plan_commands as wire
from raymq.actors.wire.commands.stream_plan_commands import QueryPlans
from raymq.actors.wire.frame import Command
from raymq.client.bulk.coordinator_lookup import request_named_broker
from raymq.client.bulk.range_reader import BrokerTopic, bounds
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS, retry_while_unavailable
from raymq.client.task_connection import shared_connection
from raymq.spark_bridge.batch_plan import (
    BatchPlan,
    StreamBroken,
    TopicEpoch,
    known_topic_epochs,
    next_plan,
    recovery_epochs,
    verify_plan,
)
from raymq.spark_bridge.fetch_ranges import FetchRanges
from raymq.spark_bridge.offset_ranges import OffsetRange, split_ranges

_log = logging.getLogger("raymq.spark")
#: The number of tickets of a batch, and so the most tasks that can share one. A checkpoint counts tickets: after a
#: change of this number a batch that is run again would have some tickets twice.
TASK_SLOTS: Final = 1_000

#: Spark's local properties of the query that a task runs for.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
#: The name of all jobs of one start of a query.
_SESSION: Final = "spark.jobGroup.id"
#: The bridge's local property: the name of the run that ends by itself.
RUN_PROPERTY: Final = "raymq.run"
#: The kind of a stream's key for `ensure_coordinator`.
STREAM_KIND: Final = "stream"
#: The time-out of a request to the coordinator of a stream.
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
        return wire.read_stream_plans(await self._ask(wire.stream_plans_command(self._stream, query)))

    async def plan(self, query: str, batch: int, plan: bytes) -> bytes:
        """Store the plan of a batch unless there is one, and return the stored plan.

        Raise as `kept`.
        """
        return wire.read_stored_plan(await self._ask(wire.plan_batch_command(self._stream, query, batch, plan)))

    async def _ask(self, command: Command) -> Command:
        return await retry_while_unavailable(
            lambda: request_named_broker(self._mq, self._coordinator, command, _REQUEST_SECONDS)
        )


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a Spark query, in one start of the query.

    `run` is the name of the run if that ends by itself.
    """

    query: str
    number: int
    session: str
    run: str | None = None


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The topics of a stream, and the limits of its batches.

    Attributes:
        stream: its name, under which its plans are stored.
        coordinator: the broker that stores them.
        start_offsets, start_epochs: as those of `next_plan`.
        max_messages: the largest number of messages of a batch; None: all available ones.
        skip_losses: whether the stream continues after missing messages.
    """

    stream: str
    coordinator: str
    topics: tuple[str, ...]
    start_offsets: Mapping[MessageQueue, int] | None
    max_messages: int | None
    start_epochs: Mapping[BrokerTopic, TopicEpoch] | None = None
    skip_losses: bool = False


@dataclass(frozen=True, slots=True)
class ReadStreamBatch:
    """A function for mapInArrow over the tickets of a batch.

    It yields the messages that the batch's plan assigns to the tickets.
    """

    source: StreamSource
    fetch: FetchRanges
    tasks: int
    """The number of tasks that share a batch, if it is large enough."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the tickets; Spark calls this in a task."""
        tickets = [number % TASK_SLOTS for batch in batches for number in batch.column(0).to_pylist()]
        mq = shared_connection(self.fetch.name_servers, self.fetch.tls)
        plan = mq.run(get_or_create_plan(mq, self.source, current_batch()))
        pieces = split_ranges(
            [OffsetRange(queue, *limits) for queue, limits in sorted(plan.ranges.items())], self.tasks
        )
        mine = [piece for ticket in tickets for piece in pieces[ticket::TASK_SLOTS]]
        if mine:
            numbers = pa.RecordBatch.from_arrays([pa.array(range(len(mine)), pa.int64())], names=["id"])
            yield from replace(self.fetch, ranges=tuple(mine), planned=plan.origins)([numbers])


async def get_or_create_plan(mq: Connection, source: StreamSource, batch: StreamBatch) -> BatchPlan:
    """Return the stored plan of a batch, or create and store it.

    Raises:
        StreamBroken: the stream cannot continue at its offsets.
        BrokerUnavailable: a broker of the topics, or the one that stores the plans, did not become available in time.
        TopicNotFound, PermissionDenied: a topic does not exist, or may not be read.
    """
    register = BatchPlanStore(mq, source.stream, source.coordinator)
    plans = (await register.kept(batch.query)).plans
    if batch.number in plans:
        stored = _check_owner(BatchPlan.unpack(plans[batch.number]), source, batch)
        if source.skip_losses:  # The tasks read the messages of the plan that still exist.
            return stored
        verify_plan(stored, await bounds(mq, stored.topics, recovery_epochs(stored.origins), RETRY_TIMEOUT_SECONDS))
        return stored
    previous = _previous(source.stream, batch, plans)
    known = recovery_epochs(known_topic_epochs(previous, source.start_epochs))
    epochs = {origin: epoch for origin, epoch in known.items() if origin[0] in source.topics}
    skips = source.skip_losses
    found = await bounds(mq, source.topics, epochs, RETRY_TIMEOUT_SECONDS, skip_missing=skips)
    plan = next_plan(
        *(batch.number, previous, found, source.start_offsets, source.max_messages, batch.run, source.start_epochs),
        skip_losses=skips,
        skip_topics=set(source.topics) - {topic for topic, _ in found},
    )
    for queue, (count, reason) in plan.skipped.items():
        earlier = previous.skipped.get(queue) if previous is not None else None
        if (count, reason) != earlier:
            _log.warning("stream %s has skipped %d messages of %s: %s", source.stream, count, queue, reason)
    packed = replace(plan, session=batch.session).pack()
    return _check_owner(BatchPlan.unpack(await register.plan(batch.query, batch.number, packed)), source, batch)


def _check_owner(plan: BatchPlan, source: StreamSource, batch: StreamBatch) -> BatchPlan:
    """Return the plan, or raise InvalidInput if another stream of the same name made it.

    The other stream belongs to the same query.
    """
    if plan.session == batch.session and plan.topics != set(source.topics):
        other = ", ".join(sorted(plan.topics))
        raise InvalidInput(
            "query",
            f"a name of its own for each stream of a query; a stream that reads {other} has this name",
            source.stream,
        )
    return plan


def _previous(stream: str, batch: StreamBatch, plans: Mapping[int, bytes]) -> BatchPlan | None:
    """Return the plan of the previous batch, None for the first batch.

    Its number may be lower by more than one, because Spark has batches that read from no source.
    """
    earlier = [number for number in plans if number < batch.number]
    if earlier:
        return BatchPlan.unpack(plans[max(earlier)])
    if plans:
        raise StreamBroken(
            f"batch {batch.number} of {stream} is older than the batches with stored plans, {sorted(plans)}"
        )
    if batch.number:
        reason = f"stream {stream} has no plan of the query {batch.query}, which has reached batch {batch.number}"
        raise StreamBroken(f"{reason}: its plans were stored under another name, or replaced by those of newer queries")
    return None


def current_batch() -> StreamBatch:
    """Return the batch of this thread's task. Raise RayMQError outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    names = _QUERY, _BATCH, _SESSION, RUN_PROPERTY
    query, number, session, run = (None,) * 4 if context is None else map(context.getLocalProperty, names)
    if query is None or number is None:
        raise RayMQError(
            "a stream's messages are read in a batch of its query only",
            remedy="start a query of it with writeStream; in foreachBatch read it on the thread of the call",
        )
    return StreamBatch(query, int(number), session or "", run or None)
