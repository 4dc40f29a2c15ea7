"""Topics read by Spark 4.2: bounded, and as a stream with limits that can end by itself.

Spark runs what plans on the driver's machine, in Python processes of its own, and `read` in its tasks' workers.
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
from raymq.actors.wire.commands.stream_plans import TopicBounds
from raymq.client.bulk.streams import Origin, bounds
from raymq.client.requests.asking import PATIENCE_SECONDS
from raymq.spark_bridge.plan import Goal, Lineage, Plan
from raymq.spark_bridge.planning import check_plan, epochs_of, lineages, next_plan, turn_after
from raymq.spark_bridge.ranges import Range, cut, lineages_of, plan
from raymq.spark_bridge.reader import Selection, checked_topics, fetch_of
from raymq.spark_bridge.source.offsets import Offset, initial_offset, offset_after, offset_of, plan_at, plan_between
from raymq.spark_bridge.source.options import ClusterAddress, ReadOptions, StreamOptions
from raymq.spark_bridge.stream import Starts, first_offsets
from raymq.spark_bridge.tasks import FetchRanges

#: The row that a task's FetchRanges is called with: it has one range.
_FIRST: Final = pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], names=["id"])
_log = logging.getLogger("raymq.spark")
_AVAILABLE_NOW: Final = "available now"


class RangeOfQueue(InputPartition):  # type: ignore[misc]
    """What one task reads, and of which messages that was when it was planned; None where nobody knows."""

    def __init__(self, piece: Range, planned: Lineage | None = None) -> None:
        self.piece = piece
        self.planned = planned


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """A bounded read. Which messages it covers is fixed when Spark plans the first action on its DataFrame."""

    def __init__(self, options: ReadOptions, selection: Selection) -> None:
        self._options = options
        self._topics = checked_topics(options.topics)
        self._fetch = _fetch_of(options.cluster, selection, skip_losses=options.skip_losses)

    def partitions(self) -> list[InputPartition]:
        """Spark's call on the driver. Raises as `ranges.plan`."""
        options, mq = self._options, self._options.cluster.connection()
        planned = lineages_of(mq, self._topics)  # first: what changes while it is planned is found by the tasks
        ranges = plan(mq, self._topics, options.start, options.end, skip_losses=options.skip_losses)
        return _partitions(ranges, options.tasks, planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark's call in a task."""
        return _messages(self._fetch, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream. Its position is in Spark's checkpoint; what is gone is an error, and never passed over."""

    def __init__(self, options: StreamOptions, selection: Selection) -> None:
        self._options = options
        self._topics = tuple(checked_topics(options.topics))
        self._fetch = _fetch_of(options.cluster, selection, skip_losses=options.skip_losses)
        self._goal: Goal | None = None
        self._ends: Offset | None = None
        self._initial: Offset | None = None
        #: Where the batch ends that was planned last: it is of what was there a moment ago.
        self._planned: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins: as `start` says when it is asked first, and not anew until something has come."""
        if self._initial is None:
            starts, started = self._starts()
            found = self._bounds(epochs_of(started))
            planned = next_plan(0, None, found, starts, 0, started=started, **self._skipping(found))
            self._initial = initial_offset(planned)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch reads, unless the trigger says otherwise."""
        return ReadAllAvailable() if self._options.most is None else ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing is read that comes after this call."""
        found = self._bounds({})
        self._goal = Goal(_AVAILABLE_NOW, dict(_highs(found)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the batch ends that begins at `start`; `start` itself where there is nothing to read.

        Raises:
            StreamBroken, TopicNotFound, BrokerUnavailable.
        """
        previous = replace(plan_at(start), goal=self._goal)
        starts, started = None, None
        if not previous.topics.issuperset(self._topics):  # one was added to the query
            starts, started = self._starts()
        known = epochs_of(lineages(previous, started))
        found = self._bounds({origin: epoch for origin, epoch in known.items() if origin[0] in self._topics})
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        run = None if self._goal is None else _AVAILABLE_NOW
        turn = turn_after(previous, most)
        planned = next_plan(turn, previous, found, starts, most, run, started, **self._skipping(found))
        self._ends = offset_of(Plan({queue: (end, end) for queue, end in _highs(found)}), planned.ranges)
        if all(begin == end for begin, end in planned.ranges.values()) and planned.topics <= previous.topics:
            return start  # else an empty batch writes down where the topic begins that was added
        for queue, (count, reason) in planned.skipped.items():
            _log.warning("skipped %d messages of %s: %s", count, queue, reason)
        self._planned = offset_after(planned, start, previous.ranges)
        return self._planned

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Where the queues ended when it was planned last, for Spark's progress."""
        return self._ends

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """What the tasks of the batch between two offsets read.

        Raises:
            StreamBroken: the batch is run again, and what it has read is not there any more.
        """
        planned = plan_between(start, end)
        if end != self._planned and not self._options.skip_losses:
            check_plan(planned, self._bounds(epochs_of(planned.origins), planned.topics))
        ranges = [Range(queue, *limits) for queue, limits in planned.ranges.items()]
        return _partitions(ranges, self._options.tasks, planned.origins)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Spark's call in a task."""
        return _messages(self._fetch, partition)

    def _starts(self) -> tuple[Starts | None, dict[Origin, Lineage]]:
        mq, options = self._options.cluster.connection(), self._options
        return first_offsets(mq, self._topics, options.start, skip_losses=options.skip_losses)

    def _skipping(self, found: Mapping[Origin, TopicBounds]) -> dict[str, Any]:
        """Return what `next_plan` is told about messages that are gone."""
        missing = set(self._topics) - {topic for topic, _ in found}
        return {"skip_losses": self._options.skip_losses, "skip_topics": missing}

    def _bounds(self, epochs: Mapping[Origin, int], topics: Sequence[str] | set[str] = ()) -> dict[Origin, TopicBounds]:
        mq = self._options.cluster.connection()
        skips = self._options.skip_losses
        return mq.run(bounds(mq, topics or self._topics, epochs, PATIENCE_SECONDS, skip_missing=skips))


def _highs(found: Mapping[Origin, TopicBounds]) -> Iterator[tuple[MessageQueue, int]]:
    for origin, told in found.items():
        for queue_id, each in told.queues.items():
            yield MessageQueue(*origin, queue_id), each.high


def _fetch_of(cluster: ClusterAddress, selection: Selection, *, skip_losses: bool) -> FetchRanges:
    return replace(fetch_of(cluster.connection(), (), selection), skip_losses=skip_losses)


def _partitions(ranges: list[Range], tasks: int, planned: Mapping[Origin, Lineage]) -> list[InputPartition]:
    return [RangeOfQueue(piece, planned.get((piece.queue.topic, piece.queue.broker))) for piece in cut(ranges, tasks)]


def _messages(fetch: FetchRanges, partition: Any) -> Iterator[pa.RecordBatch]:
    """Of no range none: where there is nothing to read, Spark runs one task with a partition of its own."""
    if isinstance(partition, RangeOfQueue):
        piece, planned = partition.piece, None
        if partition.planned is not None:
            planned = {(piece.queue.topic, piece.queue.broker): partition.planned}
        yield from replace(fetch, ranges=(piece,), planned=planned)([_FIRST])
