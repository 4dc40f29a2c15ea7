"""DataFrames and streams written by Spark 4.2: tasks stage their rows on the brokers, the driver commits the winners'.

A batch of a stream is a write of a series, named as `SparkBridge.sink` names it: by Spark's id of the query, the topic
and the sink's name; the number of the batch is that of the write. One that Spark runs again is not written again.
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
from raymq.client.bulk.committing import StagedWrite, Written
from raymq.client.connection import Connection
from raymq.client.errors import OutcomeUnknown, RayMQError
from raymq.spark_bridge.sink import series_of
from raymq.spark_bridge.source.options import WriteOptions
from raymq.spark_bridge.tasks import StageRows
from raymq.spark_bridge.tickets import this_batch
from raymq.spark_bridge.writer import writable_queues

#: Columns that choose a row's queue.
_CHOOSING: Final = frozenset({"keys", "sharding_key"})

_log = logging.getLogger(__name__)


class Staged(WriterCommitMessage):  # type: ignore[misc]
    """What a task has staged: parts (part, broker, rows) of a transaction, whose home decides. None of one that was
    written before.
    """

    def __init__(self, transaction: str, home: str, parts: Sequence[tuple[str, str, int]]) -> None:
        self.transaction = transaction
        self.home = home
        self.parts = tuple(parts)


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """All rows or none. Made on the driver, which opens the write; sent to the tasks; committed on the driver."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._cluster = options.cluster
        mq = options.cluster.connection()
        queues = _queues(mq, options.topic, columns)
        opened = StagedWrite.open(mq, options.topic, _brokers(queues))
        if isinstance(opened, Written):
            raise TypeError(f"{opened.transaction} is of no series and stands for no other write")
        self._transaction, self._home = opened.transaction, opened.home
        self._stage = _stage(options, opened, queues, columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Spark's call in a task."""
        return Staged(self._transaction, self._home, _parts(self._stage, iterator))

    def commit(self, messages: list[Staged | None]) -> None:
        """Spark's call on the driver when all tasks are done. Raises as `_commit`."""
        _commit(self._opened(), messages)

    def abort(self, messages: list[Staged | None]) -> None:
        """Spark's call on the driver when a task has failed for good, or the commit has."""
        _abort(self._opened(), messages)

    def _opened(self) -> StagedWrite:
        return StagedWrite(self._cluster.connection(), self._transaction, self._home)


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Each batch once. Made on the driver for each batch, and once more, apart from that, for its commit."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        #: All tasks of the batch open the same write: which batch it is only they are told.
        self._stem = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Spark's call in a task."""
        batch, options = this_batch(), self._options
        mq = options.cluster.connection()
        queues = _queues(mq, options.topic, self._columns)
        opened = StagedWrite.open(
            mq,
            options.topic,
            _brokers(queues),
            series=series_of(batch.query, options.topic, options.name),
            number=batch.number,
            stem=self._stem,
        )
        if isinstance(opened, Written):
            deque(iterator, maxlen=0)  # Spark has it ready: what is left in the pipe would cost it this worker
            return Staged("", "", ())
        return Staged(opened.transaction, opened.home, _parts(_stage(options, opened, queues, self._columns), iterator))

    def commit(self, messages: list[Staged | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Spark's call on the driver when all tasks of the batch are done. Raises as `_commit`."""
        opened = self._opened(messages)
        if opened is not None:
            _commit(opened, messages)
        else:
            _log.info("batch %d was written before", batchId)

    def abort(self, messages: list[Staged | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Spark's call on the driver when a task has failed for good, or the commit has."""
        opened = self._opened(messages)
        if opened is not None:
            _abort(opened, messages)

    def _opened(self, messages: list[Staged | None]) -> StagedWrite | None:
        """The write that the tasks have opened; None: no task says that it has."""
        opened = next((each for each in messages if each is not None and each.transaction), None)
        if opened is None:
            return None
        return StagedWrite(self._options.cluster.connection(), opened.transaction, opened.home)


def _queues(mq: Connection, topic: str, columns: Sequence[str]) -> list[MessageQueue]:
    return writable_queues(mq, topic, keyed=not _CHOOSING.isdisjoint(columns))


def _brokers(queues: Sequence[MessageQueue]) -> set[str]:
    return {queue.broker for queue in queues}


def _stage(
    options: WriteOptions, opened: StagedWrite, queues: Sequence[MessageQueue], columns: Sequence[str]
) -> StageRows:
    cluster = options.cluster
    return StageRows(
        cluster.name_servers, opened.transaction, tuple(queues), tuple(columns), cluster.tls, home=opened.home
    )


def _parts(stage: StageRows, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, str, int]]:
    return [(row["part"], row["broker"], row["rows"]) for staged in stage(batches) for row in staged.to_pylist()]


def _commit(opened: StagedWrite, messages: Sequence[Staged | None]) -> None:
    """Commit what the tasks have staged, and wait until it is visible.

    That a broker is away when it is committed is no failure: its rows become visible when it is back, and who was told
    of a failure would write them again.

    Raises:
        OutcomeUnknown: only its home knows whether it is committed, which does not answer.
        NotStored, StoreFull: it is not, nor will it be.
    """
    try:
        opened.commit(part for each in messages if each is not None for part in each.parts)
    except OutcomeUnknown as error:
        if not error.committed:
            raise
        _log.warning("a write is committed and not all of it is visible yet: %s", error)


def _abort(opened: StagedWrite, messages: Sequence[Staged | None]) -> None:
    """Give it up, if that can be: else its home does so by itself, or has committed it."""
    with contextlib.suppress(RayMQError):
        opened.abort({broker for each in messages if each is not None for _, broker, _ in each.parts})
