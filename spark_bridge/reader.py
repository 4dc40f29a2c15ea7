"""A topic as a bounded DataFrame: planned on the driver, fetched by the tasks from the brokers."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput
from raymq.spark_bridge.decode import FORMATS, BodyDecoder
from raymq.spark_bridge.ranges import Position, Range, cut, plan
from raymq.spark_bridge.schema import arrow_schema, message_schema, parse_schema
from raymq.spark_bridge.tasks import FetchRanges

#: Tasks for every core, so that one slow broker does not hold up the rest.
_TASKS_PER_CORE = 2


def read(
    spark: SparkSession,
    mq: Connection,
    topic: str,
    start: Position,
    end: Position,
    schema: str | DataType | None,
    format: str,  # noqa: A002 - the public name
    cores: int,
) -> tuple[DataFrame, list[Range]]:
    """Return the DataFrame and the ranges that it covers. See `SparkBridge.read`."""
    if not isinstance(format, str) or format not in FORMATS:
        raise InvalidInput("format", f"one of {', '.join(FORMATS)}", format)
    decoded = None if schema is None else parse_schema(schema)
    columns = message_schema(decoded)
    ranges = plan(mq, topic, start, end)
    parts = cut(ranges, cores * _TASKS_PER_CORE)
    decoder = None if decoded is None else BodyDecoder(arrow_schema(decoded), FORMATS[format])
    fetch = FetchRanges(tuple(mq.name_servers), tuple(parts), arrow_schema(columns), decoder, mq.tls)
    if not parts:
        return spark.createDataFrame([], columns), ranges
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(fetch, columns), ranges
