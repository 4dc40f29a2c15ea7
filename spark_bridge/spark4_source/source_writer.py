"""Write DataFrames and streams with Spark 4.2.

Tasks stage their rows on the brokers, and the driver commits the parts of the successful attempts. A batch of a stream
is a write of a series. The series is named as `SparkBridge.sink` names it: by Spark's id of the query, the topic and
the sink's name; the number of the batch is the number of the write. A batch that Spark runs again is not written again.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from raymq.client import MessageQueue
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.connection import Connection
from raymq.client.errors import OutcomeUnknown, RayMQError
from raymq.spark_bridge.row_staging import StageRows
from raymq.spark_bridge.spark4_source.source_options import WriteOptions
from raymq.spark_bridge.stream_tasks import current_batch
from raymq.spark_bridge.writer import sink_series, writable_queues

#: Columns that choose a row's queue.
_CHOOSING: Final = frozenset({"keys", "sharding_key"})

_log = logging.getLogger(__name__)


class StagedMessage(WriterCommitMessage):  # type: ignore[misc]
    """The parts (part, broker, rows) of a transaction that a task has staged.

    `coordinator` is the broker that coordinates the transaction. There are no parts if the batch was written before.
    """

    def __init__(self, transaction: str, coordinator: str, parts: Sequence[tuple[str, str, int]]) -> None:
        self.transaction = transaction
        self.coordinator = coordinator
        self.parts = tuple(parts)


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A writer that makes all rows visible, or none.

    It is created on the driver, which opens the write, then sent to the tasks, and committed on the driver.
    """

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._cluster = options.cluster
        mq = options.cluster.connection()
        queues = _queues(mq, options.topic, columns)
        opened = StagedWrite.open(mq, options.topic, _brokers(queues))
        if isinstance(opened, CommittedWrite):
            raise TypeError(f"{opened.transaction} belongs to no series, so it cannot be committed already")
        self._transaction, self._coordinator = opened.transaction, opened.coordinator
        self._stage = _stage(options, opened, queues, columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of a partition; Spark calls this in a task."""
        return StagedMessage(self._transaction, self._coordinator, _parts(self._stage, iterator))

    def commit(self, messages: list[StagedMessage | None]) -> None:
        """Commit the write; Spark calls this on the driver after all tasks. Raises as `_commit`."""
        _commit(self._opened(), messages)

    def abort(self, messages: list[StagedMessage | None]) -> None:
        """Abort the write after a failed task or commit; Spark calls this on the driver."""
        _abort(self._opened(), messages)

    def _opened(self) -> StagedWrite:
        return StagedWrite(self._cluster.connection(), self._transaction, self._coordinator)


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A writer that writes each batch of a stream once.

    It is created on the driver for each batch, and independently a second time for the batch's commit.
    """

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        #: With it all tasks of a batch open the same write: the number of the batch is known only in the tasks.
        self._stem = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of a partition; Spark calls this in a task."""
        batch, options = current_batch(), self._options
        mq = options.cluster.connection()
        queues = _queues(mq, options.topic, self._columns)
        opened = StagedWrite.open(
            mq,
            options.topic,
            _brokers(queues),
            series=sink_series(batch.query, options.topic, options.name),
            number=batch.number,
            stem=self._stem,
        )
        if isinstance(opened, CommittedWrite):
            # Spark has sent the rows already: unread rows in the pipe would make Spark discard this worker.
            deque(iterator, maxlen=0)
            return StagedMessage("", "", ())
        return StagedMessage(
            opened.transaction, opened.coordinator, _parts(_stage(options, opened, queues, self._columns), iterator)
        )

    def commit(self, messages: list[StagedMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the batch; Spark calls this on the driver after all tasks. Raises as `_commit`."""
        opened = self._opened(messages)
        if opened is not None:
            _commit(opened, messages)
        else:
            _log.info("batch %d was written before", batchId)

    def abort(self, messages: list[StagedMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the batch after a failed task or commit; Spark calls this on the driver."""
        opened = self._opened(messages)
        if opened is not None:
            _abort(opened, messages)

    def _opened(self, messages: list[StagedMessage | None]) -> StagedWrite | None:
        """Return the write that the tasks opened, None if no task reports one."""
        opened = next((each for each in messages if each is not None and each.transaction), None)
        if opened is None:
            return None
        return StagedWrite(self._options.cluster.connection(), opened.transaction, opened.coordinator)


def _queues(mq: Connection, topic: str, columns: Sequence[str]) -> list[MessageQueue]:
    return writable_queues(mq, topic, keyed=not _CHOOSING.isdisjoint(columns))


def _brokers(queues: Sequence[MessageQueue]) -> set[str]:
    return {queue.broker for queue in queues}


def _stage(
    options: WriteOptions, opened: StagedWrite, queues: Sequence[MessageQueue], columns: Sequence[str]
) -> StageRows:
    cluster = options.cluster
    return StageRows(
        cluster.name_servers,
        opened.transaction,
        tuple(queues),
        tuple(columns),
        cluster.tls,
        coordinator=opened.coordinator,
    )


def _parts(stage: StageRows, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, str, int]]:
    return [(row["part"], row["broker"], row["rows"]) for staged in stage(batches) for row in staged.to_pylist()]


def _commit(opened: StagedWrite, messages: Sequence[StagedMessage | None]) -> None:
    """Commit the parts that the tasks have staged, and wait until they are visible.

    An unavailable broker does not fail the commit: its rows become visible when it is available again, and after an
    error the rows would be written again.

    Raises:
        OutcomeUnknown: only the coordinator of the write knows whether it is committed, and it does not answer.
        NotStored, StoreFull: the write is not committed and will not be.
    """
    try:
        opened.commit(part for each in messages if each is not None for part in each.parts)
    except OutcomeUnknown as error:
        if not error.committed:
            raise
        _log.warning("a write is committed, but not all of it is visible yet: %s", error)


def _abort(opened: StagedWrite, messages: Sequence[StagedMessage | None]) -> None:
    """Abort the write if possible; otherwise its coordinator aborts it later, or has committed it."""
    with contextlib.suppress(RayMQError):
        opened.abort({broker for each in messages if each is not None for _, broker, _ in each.parts})
