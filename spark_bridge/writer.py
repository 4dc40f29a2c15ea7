"""A DataFrame into a topic, all or nothing: tasks stage their rows on the brokers, the driver commits the winners'."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame

from raymq.client import MessageQueue
from raymq.client.bulk import committing
from raymq.client.bulk.committing import StagedWrite, Written
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, RayMQError
from raymq.spark_bridge.tasks import StageRows


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A write that was committed: how many rows became messages, under which transaction name."""

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
    """Write every row as one message. See `SparkBridge.write`; `columns` as `write_columns` makes them.

    Args:
        series, number: which write of which series it is. One that is committed is not made again: what was written
            then is returned.
    """
    queues = writable_queues(mq, topic, keyed=not columns.keys().isdisjoint({"keys", "sharding_key"}))
    brokers = {queue.broker for queue in queues}
    opened = StagedWrite.open(mq, topic, brokers, series=series, number=number)
    if isinstance(opened, Written):
        return WriteResult(opened.rows, opened.transaction)
    stage = StageRows(
        tuple(mq.name_servers), opened.transaction, tuple(queues), tuple(columns), mq.tls, home=opened.home
    )
    rows = df.select([column.alias(name) for name, column in columns.items()])
    try:
        staged = rows.mapInArrow(stage, "part string, broker string, rows long").collect()
    except BaseException:
        with contextlib.suppress(RayMQError):  # it is aborted later, by itself
            opened.abort(brokers)
        raise
    try:
        written = opened.commit((row["part"], row["broker"], row["rows"]) for row in staged)
    except KeyboardInterrupt as error:
        error.add_note(f"finish_write({opened.transaction!r}) tells whether it was written")
        raise
    return WriteResult(written.rows, written.transaction)


def finish_write(mq: Connection, transaction: str) -> WriteResult:
    """See `SparkBridge.finish_write`."""
    written = committing.finish(mq, transaction)
    return WriteResult(written.rows, written.transaction)


def accept_write(mq: Connection, transaction: str) -> WriteResult:
    """See `SparkBridge.accept_write`."""
    written = committing.accept(mq, transaction)
    return WriteResult(written.rows, written.transaction)


def abort_write(mq: Connection, transaction: str) -> None:
    """See `SparkBridge.abort_write`."""
    committing.abort(mq, transaction)


def writable_queues(mq: Connection, topic: str, *, keyed: bool) -> list[MessageQueue]:
    """The queues that rows may go to, now; `keyed`: those that keys choose from. TopicNotFound, InvalidInput."""
    route = mq.run(mq.routes.get(topic, fresh=True))
    # Those of a broker that has just left belong to what keys choose from, as they do for producers.
    queues = mq.routes.keyed(route) if keyed else route.writable()
    if not queues:
        raise InvalidInput("topic", "a topic that may be written to", topic)
    return queues
