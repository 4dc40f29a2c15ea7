"""Topics as streaming DataFrames: where they begin, how far they are, and runs that end by themselves.

What a stream reads is planned by its tasks, see tickets.py; here, on the driver, it is defined and watched.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from raymq.actors.wire.commands.stream_plans import PlansOfQuery
from raymq.client import MessageQueue, arguments
from raymq.client.bulk.home import find_home, home_of
from raymq.client.bulk.streams import KIND, Origin, PlanRegister, bounds
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, NotFoundError, RayMQError
from raymq.client.requests.asking import PATIENCE_SECONDS
from raymq.spark_bridge.finished import FinishedBatches
from raymq.spark_bridge.plan import Lineage, Plan
from raymq.spark_bridge.ranges import CheckedPosition, Position, check_position, offsets_at
from raymq.spark_bridge.reader import Selection, checked_topics, fetch_of
from raymq.spark_bridge.stream_bars import QueryPosition, StreamBars
from raymq.spark_bridge.tickets import RUN, TICKETS, ReadTickets, StreamSource

#: The offset at which each queue begins.
Starts = dict[MessageQueue, int]
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Spark's triggers of queries that end by themselves.
_ENDING: Final = ("AvailableNowTrigger", "OneTimeTrigger")
#: How long `progress` waits for a broker that is away.
_PROGRESS_SECONDS: Final = 5.0


class StreamProgress(NamedTuple):
    """How far a stream is in a queue.

    Attributes:
        offset: all messages before it are done.
        end: the offset behind the queue's last message.
        lag: how many messages are between the two.
        skipped: how many messages the query has skipped here since it began, with `on_data_loss="skip"`. Those of a
            topic that was deleted are not counted.
        skip_reason: why it did so the last time, None if it never did.
    """

    offset: int
    end: int
    lag: int
    skipped: int = 0
    skip_reason: str | None = None


class Streams:
    """The streams of one bridge. Its methods may be called from several threads."""

    def __init__(self, spark: SparkSession, mq: Connection, cores: int) -> None:
        self._spark = spark
        self._mq = mq
        self._cores = cores
        self._homes: dict[str, str] = {}
        self._lock = threading.Lock()
        self._finished: FinishedBatches | None = None
        self._bars: StreamBars | None = None

    def open(
        self,
        topics: str | Sequence[str],
        query: str,
        start: Position,
        most: int | None,
        selection: Selection,
        console: Console | None = None,
        *,
        skip_losses: bool = False,
    ) -> DataFrame:
        """See `SparkBridge.stream`; `console` is for its progress."""
        names = tuple(checked_topics(topics))
        stream = _checked_name(query)
        if most is not None:
            most = arguments.whole("max_offsets_per_batch", most, 1, arguments.MOST_OFFSET)
        starts, started = first_offsets(self._mq, names, check_position("start", start), skip_losses=skip_losses)
        home = self._mq.run(home_of(self._mq, KIND, stream))
        with self._lock:
            self._homes[stream] = home
            self._finished = self._finished or FinishedBatches(self._spark)
            if console is not None:
                self._bars = self._bars or StreamBars(console, self._standing)
                self._bars.watch(stream)
        tickets = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", TICKETS)
            .option("numPartitions", self._cores)
            .load()
        )
        read = ReadTickets(
            StreamSource(stream, home, names, starts, most, started, skip_losses),
            replace(fetch_of(self._mq, (), selection), skip_losses=skip_losses),
            self._cores,
        )
        return tickets.select("value").mapInArrow(read, selection.columns)

    def close(self) -> None:
        """End what is shown of them."""
        if self._bars is not None:
            self._bars.close()

    def progress(self, query: str) -> dict[MessageQueue, StreamProgress]:
        """See `SparkBridge.progress`."""
        stream = _checked_name(query)
        spark_query, plans = self._newest(stream)
        if not plans:
            raise NotFoundError(f"no batch of stream {stream} is planned yet")
        return self._progress_of(spark_query, plans)

    def _standing(self, stream: str) -> QueryPosition | None:
        spark_query, plans = self._newest(stream)
        if not plans or spark_query not in {query.id for query in self._spark.streams.active}:
            return None
        told = self._progress_of(spark_query, plans).values()
        return QueryPosition(spark_query, sum(each.offset for each in told), sum(each.end for each in told))

    def _newest(self, stream: str) -> PlansOfQuery:
        """What is kept of the query that has planned a batch last."""
        return self._mq.run(PlanRegister(self._mq, stream, self._home(stream)).kept(None))

    def _progress_of(self, spark_query: str, plans: Mapping[int, bytes]) -> dict[MessageQueue, StreamProgress]:
        newest = Plan.unpack(plans[max(plans)])
        done = self._finished is not None and self._finished.last_of(spark_query) >= max(plans)
        epochs = {origin: epoch for origin, (_, epoch) in newest.origins.items()}
        topics = dict.fromkeys(topic for topic, _ in epochs)
        found = self._mq.run(bounds(self._mq, topics, epochs, _PROGRESS_SECONDS, skip_missing=True))
        progress = {}
        for queue in sorted(newest.ranges.keys() | newest.skipped.keys()):
            skipped, reason = newest.skipped.get(queue, (0, None))
            of_topic = found.get((queue.topic, queue.broker))
            there = None if of_topic is None else of_topic.queues.get(queue.queue_id)
            begin, end = newest.ranges.get(queue, (0, 0))
            at = end if done else begin
            high = at if there is None else there.high
            progress[queue] = StreamProgress(at, high, max(0, high - at), skipped, reason)
        return progress

    def run_available_now(self, start_query: Callable[[], StreamingQuery]) -> StreamingQuery:
        """See `SparkBridge.run_available_now`."""
        context = self._spark.sparkContext
        run = uuid.uuid4().hex
        came_to: dict[str, int] = {}
        while True:
            context.setLocalProperty(RUN, run)  # the query's own thread inherits it as it is started
            try:
                query = start_query()
            finally:
                context.setLocalProperty(RUN, "")
            _check_ends(query)
            query.awaitTermination()
            plans = self._newest_plans(query.id)
            if not plans:
                raise InvalidInput("start_query", "a query that reads a stream of this bridge", query.name or query.id)
            at = {stream: batch for stream, (batch, _) in plans.items()}
            if self._finished is not None:
                self._finished.note(query.id, max(at.values()))
            if all(plan.is_last_of(run) for _, plan in plans.values()):
                return query
            if at == came_to:
                raise RayMQError(
                    f"the query {query.id} ended at batch {at}, and reads no further",
                    remedy="it has to read its streams in each batch, and to begin with the same checkpointLocation",
                )
            came_to = at

    def _newest_plans(self, query: str) -> dict[str, tuple[int, Plan]]:
        """Of those streams that the query has read: its newest batch, and the plan of that."""
        newest = {}
        with self._lock:
            homes = dict(self._homes)
        for stream, home in homes.items():
            plans = self._mq.run(PlanRegister(self._mq, stream, home).kept(query)).plans
            if plans:
                newest[stream] = max(plans), Plan.unpack(plans[max(plans)])
        return newest

    def _home(self, stream: str) -> str:
        home = self._homes.get(stream) or self._mq.run(find_home(self._mq, KIND, stream))
        if not isinstance(home, str):
            raise NotFoundError(f"there is no stream {stream}")
        return home


def first_offsets(
    mq: Connection, topics: Sequence[str], start: CheckedPosition, *, skip_losses: bool = False
) -> tuple[Starts | None, dict[Origin, Lineage]]:
    """Where each queue that is there begins, None: with the first message that is there when it is read; and of which
    messages these offsets are.

    Raises as `ranges.plan`; InvalidInput: a mapping leaves out a queue.
    """
    found = mq.run(bounds(mq, topics, {}, PATIENCE_SECONDS, skip_missing=skip_losses))
    limits = {
        MessageQueue(*origin, queue_id): (each.low, each.high)
        for origin, told in found.items()
        for queue_id, each in told.queues.items()
        if each.readable
    }
    if start == "earliest":
        return None, {}
    if isinstance(start, Mapping) and (missing := sorted(limits.keys() - start.keys())):
        raise InvalidInput("start", f"an offset for every queue, also for {missing[0]}", start)
    started = {origin: (each.topic_id, each.epoch) for origin, each in found.items()}
    return offsets_at(mq, limits, start, skip_losses=skip_losses), started


def _check_ends(query: StreamingQuery) -> None:
    """InvalidInput if it is no query, or one that would never end, which is stopped."""
    if not isinstance(query, StreamingQuery):
        raise InvalidInput("start_query", "a function that starts a query and returns it", query)
    trigger = query._jsq.streamingQuery().trigger().getClass().getSimpleName()  # noqa: SLF001 - pyspark does not tell it
    if trigger.rstrip("$") not in _ENDING:
        query.stop()
        raise InvalidInput("start_query", "a function that starts it with trigger(availableNow=True)", trigger)


def _checked_name(query: str) -> str:
    if not isinstance(query, str) or not _NAME.fullmatch(query):
        raise InvalidInput("query", "1 to 64 letters, digits, _ or -", query)
    return query
