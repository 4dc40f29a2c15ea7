"""A DataFrame into a topic, all or nothing: tasks stage their rows on the brokers, the driver commits the winners'."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from raymq.client import MessageQueue
from raymq.client.bulk.staging import StagedWriter
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput, RayMQError
from raymq.spark_bridge.tasks import StageRows

_TIMES = (TimestampType, TimestampNTZType)
#: What keys are made of. The text of any other type has blanks, or is not text at all.
_KEY_TYPES = (StringType, CharType, VarcharType, NumericType, BooleanType, DateType, *_TIMES)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A write that was committed: how many rows became messages, under which transaction name."""

    rows: int
    transaction: str


def write(
    mq: Connection,
    df: DataFrame,
    topic: str,
    body: str,
    keys: str | None,
    tags: str | None,
    properties: str | None,
) -> WriteResult:
    """Write every row as one message. See `SparkBridge.write`."""
    columns = {"body": _body(df, body)}
    if keys is not None:
        columns["keys"] = _keys(df, keys)
    if tags is not None:
        columns["tags"] = _of_type(df, "tags", tags, StringType())
    if properties is not None:
        columns["properties"] = _of_type(df, "properties", properties, MapType(StringType(), StringType()))
    queues = _writable_queues(mq, topic)
    transaction = f"spark-{uuid.uuid4().hex}"
    stage = StageRows(tuple(mq.name_servers), transaction, tuple(queues), tuple(columns), mq.tls)
    rows = df.select([column.alias(name) for name, column in columns.items()])
    with StagedWriter(mq.name_servers, mq.tls) as writer:
        try:
            staged = rows.mapInArrow(stage, "part string, broker string, rows long").collect()
        except BaseException:
            with contextlib.suppress(RayMQError):  # what cannot be forgotten now is swept by the brokers later
                writer.abort(transaction, topic)
            raise
        if staged:
            writer.commit(transaction, topic, [(row["part"], row["broker"]) for row in staged])
    return WriteResult(sum(row["rows"] for row in staged), transaction)


def _writable_queues(mq: Connection, topic: str) -> list[MessageQueue]:
    queues = mq.run(mq.routes.get(topic, fresh=True)).writable()
    if not queues:
        raise InvalidInput("topic", "a topic that may be written to", topic)
    return queues


def _column_type(df: DataFrame, field: str, name: str) -> DataType:
    if not isinstance(name, str) or df.columns.count(name) != 1:
        raise InvalidInput(field, f"the name of one of the columns {df.columns}, and of no other", name)
    return df.schema[name].dataType


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _body(df: DataFrame, name: str) -> Column:
    kind = _column_type(df, "body", name)
    if not isinstance(kind, StringType | BinaryType | StructType):
        raise InvalidInput("body", "a column of binary, string or struct", kind.simpleString())
    return _column(name)


def _keys(df: DataFrame, name: str) -> Column:
    """One key of any plain type, or a list of them, as text."""
    kind = _column_type(df, "keys", name)
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, _KEY_TYPES):
        if isinstance(kind.elementType, _TIMES):
            return F.transform(_column(name), _time_text)
        return _column(name).cast(ArrayType(StringType()))
    if isinstance(kind, _TIMES):
        return _time_text(_column(name))
    if isinstance(kind, _KEY_TYPES):
        return _column(name).cast(StringType())
    allowed = "a column of text, numbers, booleans, dates or timestamps, or lists of them"
    raise InvalidInput("keys", allowed, kind.simpleString())


def _time_text(column: Column) -> Column:
    """As ISO 8601 has it: what Spark makes of a time has a blank in it, which no key may have."""
    return F.translate(column.cast(StringType()), " ", "T")


def _of_type(df: DataFrame, field: str, name: str, wanted: DataType) -> Column:
    kind = _column_type(df, field, name)
    if kind.simpleString() != wanted.simpleString():
        raise InvalidInput(field, f"a column of {wanted.simpleString()}", kind.simpleString())
    return _column(name)
