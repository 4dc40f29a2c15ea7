"""Read topics with Spark 4.2: bounded, and as a stream.

The stream can limit its batches and end with `availableNow`. Spark runs the planning methods on the driver's machine,
in Python processes of its own, and `read` in its tasks' workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.stream_plan_commands import TopicBounds
from raymq.client.bulk.range_reader import BrokerTopic, bounds
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS
from raymq.spark_bridge.batch_plan import (
    BatchPlan,
    RunEnd,
    TopicEpoch,
    known_topic_epochs,
    next_plan,
    recovery_epochs,
    rotation_after,
    verify_plan,
)
from raymq.spark_bridge.bounded_read import ReadSelection, check_topics, fetch_task
from raymq.spark_bridge.fetch_ranges import FetchRanges
from raymq.spark_bridge.offset_ranges import OffsetRange, fetch_topic_epochs, plan, split_ranges
from raymq.spark_bridge.spark4_source.checkpoint_offsets import (
    Offset,
    end_offset,
    initial_offset,
    offset_after,
    plan_between,
    previous_plan,
)
from raymq.spark_bridge.spark4_source.source_options import ClusterAddress, ReadOptions, StreamOptions
from raymq.spark_bridge.topic_stream import StartOffsets, initial_offsets

#: The row for which a task's FetchRanges is called; it has one range.
_FIRST: Final = pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], names=["id"])
_log = logging.getLogger("raymq.spark")
_AVAILABLE_NOW: Final = "available now"


class RangePartition(InputPartition):  # type: ignore[misc]
    """The range that one task reads, with its topic id and epoch at planning time.

    `planned` is None if these are unknown.
    """

    def __init__(self, piece: OffsetRange, planned: TopicEpoch | None = None) -> None:
        self.piece = piece
        self.planned = planned


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """A bounded read.

    Its offsets are fixed when Spark plans the first action on its DataFrame.
    """

    def __init__(self, options: ReadOptions, selection: ReadSelection) -> None:
        self._options = options
        self._topics = check_topics(options.topics)
        self._fetch = _fetch_of(options.cluster, selection, skip_losses=options.skip_losses)

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges; Spark calls this on the driver. Raises as `offset_ranges.plan`."""
        options, mq = self._options, self._options.cluster.connection()
        # Fetched first, so that the tasks detect changes that happen during planning.
        planned = fetch_topic_epochs(mq, self._topics)
        ranges = plan(mq, self._topics, options.start, options.end, skip_losses=options.skip_losses)
        return _partitions(ranges, options.tasks, planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; Spark calls this in a task."""
        return _messages(self._fetch, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream whose position is in Spark's checkpoint.

    Missing messages raise an error, unless the option `on_data_loss` is "skip".
    """

    def __init__(self, options: StreamOptions, selection: ReadSelection) -> None:
        self._options = options
        self._topics = tuple(check_topics(options.topics))
        self._fetch = _fetch_of(options.cluster, selection, skip_losses=options.skip_losses)
        self._goal: RunEnd | None = None
        self._ends: Offset | None = None
        self._initial: Offset | None = None
        #: The end of the batch that was planned last: its messages existed a moment ago, so they need not be verified.
        self._planned: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset at which a new query begins.

        The first call fixes it by the option `start`; later calls return the same offset.
        """
        if self._initial is None:
            start_offsets, start_epochs = self._starts()
            found = self._bounds(recovery_epochs(start_epochs))
            planned = next_plan(0, None, found, start_offsets, 0, start_epochs=start_epochs, **self._skipping(found))
            self._initial = initial_offset(planned)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch, unless the trigger sets another one."""
        return ReadAllAvailable() if self._options.max_messages is None else ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the stream: messages stored after this call are not read."""
        found = self._bounds({})
        self._goal = RunEnd(_AVAILABLE_NOW, dict(_high_offsets(found)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the batch that begins at `start`, or `start` without new messages.

        Raises:
            StreamBroken, TopicNotFound, BrokerUnavailable.
        """
        previous = replace(previous_plan(start), goal=self._goal)
        start_offsets, start_epochs = None, None
        if not previous.topics.issuperset(self._topics):  # A topic was added to the query.
            start_offsets, start_epochs = self._starts()
        known = recovery_epochs(known_topic_epochs(previous, start_epochs))
        found = self._bounds({origin: epoch for origin, epoch in known.items() if origin[0] in self._topics})
        max_messages = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        run = None if self._goal is None else _AVAILABLE_NOW
        turn = rotation_after(previous, max_messages)
        planned = next_plan(
            turn, previous, found, start_offsets, max_messages, run, start_epochs, **self._skipping(found)
        )
        self._ends = end_offset(BatchPlan({queue: (end, end) for queue, end in _high_offsets(found)}), planned.ranges)
        if all(begin == end for begin, end in planned.ranges.values()) and planned.topics <= previous.topics:
            return start  # Otherwise an empty batch follows, which records where the added topic begins.
        for queue, (count, reason) in planned.skipped.items():
            _log.warning("skipped %d messages of %s: %s", count, queue, reason)
        self._planned = offset_after(planned, start, previous.ranges)
        return self._planned

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the ends of the queues at the latest planning, for Spark's progress."""
        return self._ends

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions of the batch between two offsets.

        Raises:
            StreamBroken: the batch is run again, and messages that it read no longer exist.
        """
        planned = plan_between(start, end)
        if end != self._planned and not self._options.skip_losses:
            verify_plan(planned, self._bounds(recovery_epochs(planned.origins), planned.topics))
        ranges = [OffsetRange(queue, *limits) for queue, limits in planned.ranges.items()]
        return _partitions(ranges, self._options.tasks, planned.origins)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; Spark calls this in a task."""
        return _messages(self._fetch, partition)

    def _starts(self) -> tuple[StartOffsets | None, dict[BrokerTopic, TopicEpoch]]:
        mq, options = self._options.cluster.connection(), self._options
        return initial_offsets(mq, self._topics, options.start, skip_losses=options.skip_losses)

    def _skipping(self, found: Mapping[BrokerTopic, TopicBounds]) -> dict[str, Any]:
        """Return the arguments of `next_plan` about missing messages."""
        missing = set(self._topics) - {topic for topic, _ in found}
        return {"skip_losses": self._options.skip_losses, "skip_topics": missing}

    def _bounds(
        self, epochs: Mapping[BrokerTopic, int], topics: Sequence[str] | set[str] = ()
    ) -> dict[BrokerTopic, TopicBounds]:
        mq = self._options.cluster.connection()
        skips = self._options.skip_losses
        return mq.run(bounds(mq, topics or self._topics, epochs, RETRY_TIMEOUT_SECONDS, skip_missing=skips))


def _high_offsets(found: Mapping[BrokerTopic, TopicBounds]) -> Iterator[tuple[MessageQueue, int]]:
    for origin, topic_bounds in found.items():
        for queue_id, each in topic_bounds.queues.items():
            yield MessageQueue(*origin, queue_id), each.high


def _fetch_of(cluster: ClusterAddress, selection: ReadSelection, *, skip_losses: bool) -> FetchRanges:
    return replace(fetch_task(cluster.connection(), (), selection), skip_losses=skip_losses)


def _partitions(
    ranges: list[OffsetRange], tasks: int, planned: Mapping[BrokerTopic, TopicEpoch]
) -> list[InputPartition]:
    return [
        RangePartition(piece, planned.get((piece.queue.topic, piece.queue.broker)))
        for piece in split_ranges(ranges, tasks)
    ]


def _messages(fetch: FetchRanges, partition: Any) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition.

    It yields none for a partition without a range: if there is nothing to read, Spark runs one task with a partition of
    its own.
    """
    if isinstance(partition, RangePartition):
        piece, planned = partition.piece, None
        if partition.planned is not None:
            planned = {(piece.queue.topic, piece.queue.broker): partition.planned}
        yield from replace(fetch, ranges=(piece,), planned=planned)([_FIRST])
