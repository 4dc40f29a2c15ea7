"""What runs in Spark's Python workers for a stream: take the plan of the batch, or make it, and read a share of it.

Spark 3.5 has no sources in Python. So Spark's own source `rate-micro-batch` emits the same count of rows for each
batch, the tickets; and what a ticket stands for is planned by the first task that asks, and kept by the brokers under
Spark's own ids of the query and the batch, which every task is told. A batch that is run again, by whichever driver,
finds its plan and reads the same messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.client.bulk.streams import Origin, PlanRegister, bounds
from raymq.client.connection import Connection
from raymq.client.requests.asking import PATIENCE_SECONDS
from raymq.client.task_connection import shared_connection
from raymq.spark_bridge.plan import Lineage, Plan
from raymq.spark_bridge.planning import StreamBroken, check_plan, epochs_of, lineages, next_plan
from raymq.spark_bridge.ranges import Range, cut
from raymq.spark_bridge.tasks import FetchRanges

_log = logging.getLogger("raymq.spark")
#: So many tickets has a batch, and so many tasks can share one at most. A checkpoint counts them: with another number a
#: batch that is run again would have some tickets twice.
TICKETS: Final = 1_000

#: What Spark tells its tasks of the query that they run for.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
#: The name of all jobs of one start of a query.
_SESSION: Final = "spark.jobGroup.id"
#: What the bridge tells them: the name of the run that ends by itself.
RUN: Final = "raymq.run"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Which batch of which query of Spark is read, in which start of it, and in which run if that ends by itself."""

    query: str
    number: int
    session: str
    run: str | None = None


@dataclass(frozen=True, slots=True)
class StreamSource:
    """What is read, and how much at a time.

    Attributes:
        stream: its name, under which its plans are kept.
        home: the broker that keeps them.
        starts, started: as those of `next_plan`.
        most: how many messages a batch has at most; None: all that are there.
        skip_losses: whether it goes on behind messages that are gone.
    """

    stream: str
    home: str
    topics: tuple[str, ...]
    starts: Mapping[MessageQueue, int] | None
    most: int | None
    started: Mapping[Origin, Lineage] | None = None
    skip_losses: bool = False


@dataclass(frozen=True, slots=True)
class ReadTickets:
    """For mapInArrow over the tickets of a batch: yields the messages that its plan has for them."""

    source: StreamSource
    fetch: FetchRanges
    tasks: int
    """How many share a batch, so far as it is large enough."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's entry."""
        tickets = [number % TICKETS for batch in batches for number in batch.column(0).to_pylist()]
        mq = shared_connection(self.fetch.name_servers, self.fetch.tls)
        plan = mq.run(plan_of(mq, self.source, this_batch()))
        pieces = cut([Range(queue, *limits) for queue, limits in sorted(plan.ranges.items())], self.tasks)
        mine = [piece for ticket in tickets for piece in pieces[ticket::TICKETS]]
        if mine:
            numbers = pa.RecordBatch.from_arrays([pa.array(range(len(mine)), pa.int64())], names=["id"])
            yield from replace(self.fetch, ranges=tuple(mine), planned=plan.origins)([numbers])


async def plan_of(mq: Connection, source: StreamSource, batch: StreamBatch) -> Plan:
    """The plan of a batch: the one that stands, or the next one, which stands from now on.

    Raises:
        StreamBroken: the stream cannot go on where it stood.
        BrokerUnavailable: a broker of the topics, or the one that keeps the plans, did not come back in time.
        TopicNotFound, PermissionDenied: a topic is gone, or may not be read.
    """
    register = PlanRegister(mq, source.stream, source.home)
    kept = (await register.kept(batch.query)).plans
    if batch.number in kept:
        standing = _own(Plan.unpack(kept[batch.number]), source, batch)
        if source.skip_losses:  # the tasks read what is left of it
            return standing
        check_plan(standing, await bounds(mq, standing.topics, epochs_of(standing.origins), PATIENCE_SECONDS))
        return standing
    previous = _previous(source.stream, batch, kept)
    known = epochs_of(lineages(previous, source.started))
    epochs = {origin: epoch for origin, epoch in known.items() if origin[0] in source.topics}
    skips = source.skip_losses
    found = await bounds(mq, source.topics, epochs, PATIENCE_SECONDS, skip_missing=skips)
    plan = next_plan(
        *(batch.number, previous, found, source.starts, source.most, batch.run, source.started),
        skip_losses=skips,
        skip_topics=set(source.topics) - {topic for topic, _ in found},
    )
    for queue, (count, reason) in plan.skipped.items():
        earlier = previous.skipped.get(queue) if previous is not None else None
        if (count, reason) != earlier:
            _log.warning("stream %s has skipped %d messages of %s: %s", source.stream, count, queue, reason)
    packed = replace(plan, session=batch.session).pack()
    return _own(Plan.unpack(await register.plan(batch.query, batch.number, packed)), source, batch)


def _own(plan: Plan, source: StreamSource, batch: StreamBatch) -> Plan:
    """The plan that stands, unless another stream of the same query has made it, which has the same name."""
    if plan.session == batch.session and plan.topics != set(source.topics):
        other = ", ".join(sorted(plan.topics))
        raise InvalidInput(
            "query", f"a name of its own for each stream of a query; one that reads {other} has it", source.stream
        )
    return plan


def _previous(stream: str, batch: StreamBatch, kept: Mapping[int, bytes]) -> Plan | None:
    """The plan of the batch before, which need not have the number before: some batches read nothing of any source."""
    earlier = [number for number in kept if number < batch.number]
    if earlier:
        return Plan.unpack(kept[max(earlier)])
    if kept:
        raise StreamBroken(f"batch {batch.number} of {stream} is older than those whose plans are kept, {sorted(kept)}")
    if batch.number:
        told = f"stream {stream} knows nothing of the query {batch.query}, which has come to batch {batch.number}"
        raise StreamBroken(f"{told}: its plans were kept under another name, or gave way to those of newer queries")
    return None


def this_batch() -> StreamBatch:
    """The batch that the task of this thread works for; RayMQError outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    asked = _QUERY, _BATCH, _SESSION, RUN
    query, number, session, run = (None,) * 4 if context is None else map(context.getLocalProperty, asked)
    if query is None or number is None:
        raise RayMQError(
            "a stream's messages are read in a batch of its query only",
            remedy="start a query of it with writeStream; in foreachBatch read it on the thread of the call",
        )
    return StreamBatch(query, int(number), session or "", run or None)
