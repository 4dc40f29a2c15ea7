"""What writes the batches of a streaming query into a topic, each exactly once.

The writes of a sink are a series, named by Spark's own id of the query (which is in its checkpoint), the topic and the
sink's name; a batch's number is that of its write. The home of the series knows which numbers are committed: a batch
that Spark runs again, because it had not written down yet that it was done, is not written again.
"""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass
from typing import ClassVar, Final

from pyspark.sql import DataFrame

from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, OutcomeUnknown
from raymq.spark_bridge import writer
from raymq.spark_bridge.write_columns import write_columns

_MOST_NAME: Final = 64
#: Where Spark says on whose behalf a thread works: the query (over its restarts), and this run of it.
_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """Which columns of a batch make its messages; as the arguments of `SparkBridge.write`."""

    body: str
    keys: str | None = None
    tags: str | None = None
    properties: str | None = None
    sharding_key: str | None = None
    deliver_at: str | None = None
    delay_level: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Call it as `foreachBatch` does, with a batch and its number. Made by `SparkBridge.sink`."""

    mq: Connection
    topic: str
    columns: WrittenColumns
    name: str = ""
    #: By series the run and the number of the batch that was written last by this process.
    _last: ClassVar[dict[str, tuple[str, int]]] = {}

    def __post_init__(self) -> None:
        if len(self.name) > _MOST_NAME:
            raise InvalidInput("name", f"at most {_MOST_NAME} characters", self.name)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write the batch, unless it is written.

        Raises:
            InvalidInput: it is called outside of `foreachBatch`; or the same batch was written by another sink into
                this topic, under the same name.
            WriteIncomplete: it is committed, and what was staged of some rows is lost.
            OutcomeUnknown: it is not known whether it is committed: the query ends, and its next run is told.
            Spark's own error, TopicNotFound, BrokerUnavailable: nothing of it is visible, and the query's next run
                writes it.
        """
        query, run = _query_of(df)
        number = arguments.whole("batch_id", batch_id, 0)
        series = series_of(query, self.topic, self.name)
        if self._last.get(series) == (run, number):
            other = "a name of its own, as in sink(..., name=...), for each sink of a query that writes into one topic"
            raise InvalidInput("name", other, self.name)
        columns = write_columns(df, *astuple(self.columns))
        try:
            writer.write(self.mq, df, self.topic, columns, series=series, number=number)
        except OutcomeUnknown as error:
            if not error.committed:
                raise
            _log.warning("batch %d of query %s is committed and not all of it visible yet: %s", number, query, error)
        self._last[series] = run, number


def series_of(query: str, topic: str, name: str) -> str:
    """What the writes of one sink are called together."""
    return f"{query}/{topic}/{name}"


def _query_of(df: DataFrame) -> tuple[str, str]:
    """Spark's id of the query whose batch is being written on this thread, and of its run."""
    if not isinstance(df, DataFrame):
        raise InvalidInput("df", "the DataFrame of a batch", df)
    context = df.sparkSession.sparkContext
    query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
    if not query:
        raise InvalidInput("df", "the DataFrame of a batch, on the thread on which foreachBatch gives it", df)
    return query, run or ""
