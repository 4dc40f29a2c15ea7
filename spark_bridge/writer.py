"""Write a DataFrame into a topic, all rows or none.

Tasks stage their rows on the brokers, and the driver commits the parts of the successful attempts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame

from raymq.client import MessageQueue
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, RayMQError
from raymq.spark_bridge.worker_tasks import StageRows


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
) -> WriteResult:
    """Write every row as one message; see `SparkBridge.write`.

    `columns` are as `write_columns` returns them.

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
