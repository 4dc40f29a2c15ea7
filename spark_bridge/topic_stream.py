"""Topics as streaming DataFrames: their start, their progress, and runs until all is read.

The tasks of a stream plan its batches, see stream_tasks.py; this module, on the driver, defines and observes streams.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from raymq.actors.wire.commands.stream_plan_commands import QueryPlans
from raymq.client import MessageQueue, arguments
from raymq.client.bulk.coordinator_lookup import ensure_coordinator, find_coordinator
from raymq.client.bulk.range_reader import BrokerTopic, bounds
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, NotFoundError, RayMQError
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS
from raymq.spark_bridge.batch_plan import BatchPlan, TopicEpoch
from raymq.spark_bridge.batch_spans import record_micro_batch
from raymq.spark_bridge.bounded_read import ReadSelection, check_topics, fetch_task
from raymq.spark_bridge.offset_ranges import CheckedPosition, Position, check_position, resolve_offsets
from raymq.spark_bridge.progress_bars import QueryPosition, StreamProgressBars
from raymq.spark_bridge.stream_tasks import (
    RUN_PROPERTY,
    STREAM_KIND,
    TASK_SLOTS,
    BatchPlanStore,
    ReadStreamBatch,
    StreamSource,
)

if TYPE_CHECKING:
    from raymq.client.tracing.message_tracer import MessageTracer

#: The offset at which each queue begins.
StartOffsets = dict[MessageQueue, int]
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Spark's triggers of queries that end by themselves.
_ENDING: Final = ("AvailableNowTrigger", "OneTimeTrigger")
#: The seconds that `progress` waits for an unavailable broker.
_PROGRESS_SECONDS: Final = 5.0
#: The number of queries whose completed batches are kept; the ones reported most recently stay.
_MAX_QUERIES: Final = 1_000

_log = logging.getLogger(__name__)


class StreamProgress(NamedTuple):
    """The position of a stream in a queue.

    Attributes:
        offset: all messages before it are done.
        end: the offset after the queue's last message.
        lag: the number of messages between the two.
        skipped: the number of messages that the query has skipped in the queue since it began, with
            `on_data_loss="skip"`. Messages of a deleted topic are not counted.
        skip_reason: the reason for the latest skip, None if nothing was skipped.
    """

    offset: int
    end: int
    lag: int
    skipped: int = 0
    skip_reason: str | None = None


class StreamManager:
    """The streams of one bridge. Its methods may be called from several threads."""

    def __init__(self, spark: SparkSession, mq: Connection, cores: int) -> None:
        self._spark = spark
        self._mq = mq
        self._cores = cores
        self._coordinators: dict[str, str] = {}
        self._lock = threading.Lock()
        self._completed: CompletedBatches | None = None
        self._bars: StreamProgressBars | None = None

    def open(
        self,
        topics: str | Sequence[str],
        query: str,
        start: Position,
        max_messages: int | None,
        selection: ReadSelection,
        console: Console | None = None,
        *,
        skip_losses: bool = False,
    ) -> DataFrame:
        """Open a stream; see `SparkBridge.stream`. `console` is where progress is shown."""
        names = tuple(check_topics(topics))
        stream = _checked_name(query)
        if max_messages is not None:
            max_messages = arguments.whole("max_offsets_per_batch", max_messages, 1, arguments.MAX_OFFSET)
        start_offsets, start_epochs = initial_offsets(
            self._mq, names, check_position("start", start), skip_losses=skip_losses
        )
        coordinator = self._mq.run(ensure_coordinator(self._mq, STREAM_KIND, stream))
        with self._lock:
            self._coordinators[stream] = coordinator
            self._completed = self._completed or CompletedBatches(self._spark, self._mq.tracer)
            if console is not None:
                self._bars = self._bars or StreamProgressBars(console, self._standing)
                self._bars.watch(stream)
        tickets = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", TASK_SLOTS)
            .option("numPartitions", self._cores)
            .load()
        )
        read = ReadStreamBatch(
            StreamSource(stream, coordinator, names, start_offsets, max_messages, start_epochs, skip_losses),
            replace(fetch_task(self._mq, (), selection), skip_losses=skip_losses),
            self._cores,
        )
        return tickets.select("value").mapInArrow(read, selection.columns)

    def close(self) -> None:
        """End the progress bars of the streams."""
        if self._bars is not None:
            self._bars.close()

    def progress(self, query: str) -> dict[MessageQueue, StreamProgress]:
        """Return a stream's progress; see `SparkBridge.progress`."""
        stream = _checked_name(query)
        spark_query, plans = self._newest(stream)
        if not plans:
            raise NotFoundError(f"no batch of stream {stream} is planned yet")
        return self._progress_of(spark_query, plans)

    def _standing(self, stream: str) -> QueryPosition | None:
        spark_query, plans = self._newest(stream)
        if not plans or spark_query not in {query.id for query in self._spark.streams.active}:
            return None
        positions = self._progress_of(spark_query, plans).values()
        return QueryPosition(spark_query, sum(each.offset for each in positions), sum(each.end for each in positions))

    def _newest(self, stream: str) -> QueryPlans:
        """Return the stored plans of the query that planned a batch most recently."""
        return self._mq.run(BatchPlanStore(self._mq, stream, self._coordinator_of(stream)).kept(None))

    def _progress_of(self, spark_query: str, plans: Mapping[int, bytes]) -> dict[MessageQueue, StreamProgress]:
        newest = BatchPlan.unpack(plans[max(plans)])
        done = self._completed is not None and self._completed.last_completed(spark_query) >= max(plans)
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
        """Read all available messages; see `SparkBridge.run_available_now`."""
        context = self._spark.sparkContext
        run = uuid.uuid4().hex
        came_to: dict[str, int] = {}
        while True:
            # The query's own thread inherits the property when it is started.
            context.setLocalProperty(RUN_PROPERTY, run)
            try:
                query = start_query()
            finally:
                context.setLocalProperty(RUN_PROPERTY, "")
            _check_ends(query)
            query.awaitTermination()
            plans = self._newest_plans(query.id)
            if not plans:
                raise InvalidInput("start_query", "a query that reads a stream of this bridge", query.name or query.id)
            at = {stream: batch for stream, (batch, _) in plans.items()}
            if self._completed is not None:
                self._completed.record(query.id, max(at.values()))
            if all(plan.is_last_of(run) for _, plan in plans.values()):
                return query
            if at == came_to:
                raise RayMQError(
                    f"the query {query.id} ended at batch {at}, and reads no further",
                    remedy="it has to read its streams in each batch, and to begin with the same checkpointLocation",
                )
            came_to = at

    def _newest_plans(self, query: str) -> dict[str, tuple[int, BatchPlan]]:
        """Return the newest batch and its plan, for each stream that the query has read."""
        newest = {}
        with self._lock:
            coordinators = dict(self._coordinators)
        for stream, coordinator in coordinators.items():
            plans = self._mq.run(BatchPlanStore(self._mq, stream, coordinator).kept(query)).plans
            if plans:
                newest[stream] = max(plans), BatchPlan.unpack(plans[max(plans)])
        return newest

    def _coordinator_of(self, stream: str) -> str:
        coordinator = self._coordinators.get(stream) or self._mq.run(find_coordinator(self._mq, STREAM_KIND, stream))
        if not isinstance(coordinator, str):
            raise NotFoundError(f"there is no stream {stream}")
        return coordinator


class CompletedBatches(StreamingQueryListener):
    """The last completed batch of each query.

    Spark calls it on a thread of its own; any thread may read it.
    """

    def __init__(self, spark: SparkSession, tracer: MessageTracer | None = None) -> None:
        super().__init__()
        self._tracer = tracer
        self._lock = threading.Lock()
        self._last: OrderedDict[str, int] = OrderedDict()
        spark.streams.addListener(self)

    def last_completed(self, query: str) -> int:
        """Return the number of the query's last completed batch, -1 if none is recorded."""
        with self._lock:
            return self._last.get(query, -1)

    def record(self, query: str, batch: int) -> None:
        """Record that batch `batch` of a query is complete.

        Spark may make this call after the thread that waited for the batch has continued.
        """
        with self._lock:
            self._last[query] = max(batch, self._last.get(query, -1))
            self._last.move_to_end(query)
            if len(self._last) > _MAX_QUERIES:
                self._last.popitem(last=False)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event of a started query."""
        _log.info("query %s is started", event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event after each batch."""
        progress = event.progress
        self.record(str(progress.id), progress.batchId)
        record_micro_batch(self._tracer, progress)
        _log.info("query %s: batch %d took %d ms", progress.id, progress.batchId, progress.batchDuration)

    def onQueryIdle(self, _: object) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event of a query that has no new data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event of a terminated query.

        Spark raises a query's error in the thread that waits for the query. The termination of a stopped query has no
        error.
        """
        _log.info("query %s has ended: %s", event.id, event.exception or "it was stopped, or has read all")


def initial_offsets(
    mq: Connection, topics: Sequence[str], start: CheckedPosition, *, skip_losses: bool = False
) -> tuple[StartOffsets | None, dict[BrokerTopic, TopicEpoch]]:
    """Return the start offset of each existing queue, and the topics' ids and epochs.

    The offsets are None for "earliest": each queue then begins with the first message that exists when it is read.
    Raises as `offset_ranges.plan`, and InvalidInput if a mapping omits a queue.
    """
    found = mq.run(bounds(mq, topics, {}, RETRY_TIMEOUT_SECONDS, skip_missing=skip_losses))
    limits = {
        MessageQueue(*origin, queue_id): (each.low, each.high)
        for origin, topic_bounds in found.items()
        for queue_id, each in topic_bounds.queues.items()
        if each.readable
    }
    if start == "earliest":
        return None, {}
    if isinstance(start, Mapping) and (missing := sorted(limits.keys() - start.keys())):
        raise InvalidInput("start", f"an offset for every queue, also for {missing[0]}", start)
    start_epochs = {origin: (each.topic_id, each.epoch) for origin, each in found.items()}
    return resolve_offsets(mq, limits, start, skip_losses=skip_losses), start_epochs


def _check_ends(query: StreamingQuery) -> None:
    """Raise InvalidInput for anything but a query that ends by itself.

    A query that would not end by itself is stopped.
    """
    if not isinstance(query, StreamingQuery):
        raise InvalidInput("start_query", "a function that starts a query and returns it", query)
    trigger = query._jsq.streamingQuery().trigger().getClass().getSimpleName()  # noqa: SLF001 - pyspark does not return it
    if trigger.rstrip("$") not in _ENDING:
        query.stop()
        raise InvalidInput("start_query", "a function that starts the query with trigger(availableNow=True)", trigger)


def _checked_name(query: str) -> str:
    if not isinstance(query, str) or not _NAME.fullmatch(query):
        raise InvalidInput("query", "1 to 64 letters, digits, _ or -", query)
    return query
