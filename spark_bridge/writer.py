"""Write DataFrames into a topic, all rows of each or none.

Tasks stage their rows on the brokers, and the driver commits the parts of the successful attempts.

The batches of a streaming query that a sink writes are a series. Its name consists of Spark's own id of the query
(which is in its checkpoint), the topic and the sink's name; the number of a batch is the number of its write. The
coordinator of the series stores which numbers are committed. So a batch that Spark runs again, because it had not
recorded yet that the batch was done, is not written again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame

from raymq.client import MessageQueue, arguments
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, OutcomeUnknown, RayMQError
from raymq.spark_bridge.batch_spans import write_span
from raymq.spark_bridge.row_staging import StageRows
from raymq.spark_bridge.write_columns import write_columns

_MAX_NAME: Final = 64
#: Spark's local properties of the query (the same over its restarts) and of this run of it.
_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A committed write: the number of rows, and the transaction's name."""

    rows: int
    transaction: str


def write(
    mq: Connection,
    df: DataFrame,
    topic: str,
    columns: Mapping[str, Column],
    *,
    series: str = "",
    number: int = 0,
    common: bytes = b"",
) -> WriteResult:
    """Write every row as one message; see `SparkBridge.write`.

    `columns` are as `write_columns` returns them. `common` are properties of all messages, as they are stored.

    Args:
        series, number: the write's series and its number in the series. If this write is committed already, it is not
            repeated, and its result is returned.
    """
    queues = writable_queues(mq, topic, keyed=not columns.keys().isdisjoint({"keys", "sharding_key"}))
    brokers = {queue.broker for queue in queues}
    opened = StagedWrite.open(mq, topic, brokers, series=series, number=number)
    if isinstance(opened, CommittedWrite):
        return WriteResult(opened.rows, opened.transaction)
    stage = StageRows(
        tuple(mq.name_servers),
        opened.transaction,
        tuple(queues),
        tuple(columns),
        mq.tls,
        coordinator=opened.coordinator,
        common=common,
    )
    rows = df.select([column.alias(name) for name, column in columns.items()])
    try:
        staged = rows.mapInArrow(stage, "part string, broker string, rows long").collect()
    except BaseException:
        with contextlib.suppress(RayMQError):  # The brokers abort it later by themselves.
            opened.abort(brokers)
        raise
    try:
        written = opened.commit((row["part"], row["broker"], row["rows"]) for row in staged)
    except KeyboardInterrupt as error:
        error.add_note(f"finish_write({opened.transaction!r}) returns whether it was written")
        raise
    return WriteResult(written.rows, written.transaction)


def finish_write(mq: Connection, transaction: str) -> WriteResult:
    """Return the outcome of a write; see `SparkBridge.finish_write`."""
    written = staged_write.finish(mq, transaction)
    return WriteResult(written.rows, written.transaction)


def accept_write(mq: Connection, transaction: str) -> WriteResult:
    """Accept the loss of rows; see `SparkBridge.accept_write`."""
    written = staged_write.accept(mq, transaction)
    return WriteResult(written.rows, written.transaction)


def abort_write(mq: Connection, transaction: str) -> None:
    """Abort a write; see `SparkBridge.abort_write`."""
    staged_write.abort(mq, transaction)


def writable_queues(mq: Connection, topic: str, *, keyed: bool) -> list[MessageQueue]:
    """Return the queues that are writable now.

    With `keyed` they are the queues that keys choose from. Raise TopicNotFound, or InvalidInput if there are none.
    """
    route = mq.run(mq.routes.get(topic, fresh=True))
    # Queues of a broker that has just left are still counted when keys choose a queue, as in producers.
    queues = mq.routes.keyed(route) if keyed else route.writable()
    if not queues:
        raise InvalidInput("topic", "a topic that may be written to", topic)
    return queues


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a batch that make its messages; as the arguments of `SparkBridge.write`."""

    body: str
    keys: str | None = None
    tags: str | None = None
    properties: str | None = None
    sharding_key: str | None = None
    deliver_at: str | None = None
    delay_level: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A function for `foreachBatch`, called with a batch and its number.

    `SparkBridge.sink` creates it.
    """

    mq: Connection
    topic: str
    columns: SinkColumns
    name: str = ""
    #: By series: the run and the number of the batch that this process wrote last.
    _last: ClassVar[dict[str, tuple[str, int]]] = {}

    def __post_init__(self) -> None:
        if len(self.name) > _MAX_NAME:
            raise InvalidInput("name", f"at most {_MAX_NAME} characters", self.name)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the batch, unless it was written already.

        Raises:
            InvalidInput: it is called outside of `foreachBatch`; or another sink with the same name wrote the same
                batch into this topic.
            WriteIncomplete: the write is committed, but the staged messages of some rows are lost.
            OutcomeUnknown: it is unknown whether the write is committed: the query ends, and its next run determines
                the outcome.
            Spark's own error, TopicNotFound, BrokerUnavailable: no message is visible, and the query's next run writes
                the batch.
        """
        query, run = _query_of(df)
        number = arguments.whole("batch_id", batch_id, 0)
        series = sink_series(query, self.topic, self.name)
        if self._last.get(series) == (run, number):
            other = "a name of its own, as in sink(..., name=...), for each sink of a query that writes into one topic"
            raise InvalidInput("name", other, self.name)
        columns = write_columns(df, *astuple(self.columns))
        try:
            with write_span(self.mq, self.topic, query, number) as span:
                written = write(self.mq, df, self.topic, columns, series=series, number=number, common=span.common)
                span.rows = written.rows
        except OutcomeUnknown as error:
            if not error.committed:
                raise
            _log.warning(
                "batch %d of query %s is committed, but not all of it is visible yet: %s", number, query, error
            )
        self._last[series] = run, number


def sink_series(query: str, topic: str, name: str) -> str:
    """Return the name of the series of one sink's writes."""
    return f"{query}/{topic}/{name}"


def _query_of(df: DataFrame) -> tuple[str, str]:
    """Return Spark's id of the query whose batch this thread writes, and of its run."""
    if not isinstance(df, DataFrame):
        raise InvalidInput("df", "the DataFrame of a batch", df)
    context = df.sparkSession.sparkContext
    query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
    if not query:
        raise InvalidInput("df", "the DataFrame of a batch, on the thread on which foreachBatch gives it", df)
    return query, run or ""
