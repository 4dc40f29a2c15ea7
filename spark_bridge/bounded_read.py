"""Read topics as a bounded DataFrame.

The driver plans the ranges, and Spark tasks fetch them from the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType
from rich.console import Console

from raymq.actors.naming import check_topic
from raymq.client import Sql
from raymq.client.arguments import text
from raymq.client.bulk.range_reader import BrokerTopic
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput
from raymq.client.members.tag_filter import SqlSubscription, TagFilter
from raymq.spark_bridge.batch_plan import TopicEpoch
from raymq.spark_bridge.body_decoder import FORMATS, BodyDecoder
from raymq.spark_bridge.dataframe_schema import arrow_schema, chosen_columns, message_schema, parse_schema
from raymq.spark_bridge.fetch_ranges import FetchRanges
from raymq.spark_bridge.offset_ranges import OffsetRange, Position, fetch_topic_epochs, plan, split_ranges
from raymq.spark_bridge.progress_bars import MessageProgress

#: Tasks for each core, so that one slow broker does not delay the others.
TASKS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class ReadSelection:
    """The filters and columns of a read: which messages, and which parts of them."""

    columns: StructType
    decoder: BodyDecoder | None
    tags: frozenset[str] | None
    sql: str | None


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """The ranges of a read, and their topic ids and epochs at planning time."""

    ranges: Sequence[OffsetRange]
    planned: Mapping[BrokerTopic, TopicEpoch]


def select(
    schema: str | DataType | None,
    format: str,  # noqa: A002 - the public name
    columns: Sequence[str] | None,
    tags: str | None,
    filter: Sql | None,  # noqa: A002 - the public name
) -> ReadSelection:
    """Check the arguments of `SparkBridge.read`; raise InvalidInput if one is invalid."""
    if not isinstance(format, str) or format not in FORMATS:
        raise InvalidInput("format", f"one of {', '.join(FORMATS)}", format)
    decoded = None if schema is None else parse_schema(schema)
    chosen = chosen_columns(message_schema(decoded), columns)
    decoder = None if decoded is None else BodyDecoder(arrow_schema(decoded), FORMATS[format])
    if filter is not None:
        if not isinstance(filter, Sql):
            raise InvalidInput("filter", "an Sql(...)", filter)
        if tags is not None:
            raise InvalidInput("tags", "not together with `filter`, which may say TAGS = 'a'", tags)
        SqlSubscription(filter.expression).check()
    return ReadSelection(
        chosen,
        decoder,
        None if tags is None else TagFilter.parse(text("tags", tags)).tags,
        None if filter is None else filter.expression,
    )


def read(
    spark: SparkSession,
    mq: Connection,
    topics: str | Sequence[str],
    start: Position,
    end: Position,
    selection: ReadSelection,
    cores: int,
    console: Console | None = None,
    *,
    skip_losses: bool = False,
) -> tuple[DataFrame, PlannedRead]:
    """Return the DataFrame and its planned ranges, see `SparkBridge.read`.

    `console` is where progress is shown.
    """
    names = check_topics(topics)
    # Fetched first, so that the tasks detect changes that happen during planning.
    planned = fetch_topic_epochs(mq, names)
    ranges = plan(mq, names, start, end, skip_losses=skip_losses)
    parts = split_ranges(ranges, cores * TASKS_PER_CORE)
    if not parts:
        return spark.createDataFrame([], selection.columns), PlannedRead(ranges, planned)
    counted = None
    if console is not None:
        total = sum(part.end - part.start for part in parts)
        shown = MessageProgress(spark.sparkContext, f"read {', '.join(names)}", total, console)
        counted = spark.sparkContext.accumulator(0, shown)
    fetch = replace(fetch_task(mq, parts, selection, counted), planned=planned, skip_losses=skip_losses)
    df = spark.range(0, len(parts), 1, len(parts)).mapInArrow(fetch, selection.columns)
    return df, PlannedRead(ranges, planned)


def fetch_task(
    mq: Connection, parts: Iterable[OffsetRange], selection: ReadSelection, counted: Accumulator[int] | None = None
) -> FetchRanges:
    """Return the function with which Spark tasks fetch these ranges.

    The tasks add the number of the messages that they processed to `counted`.
    """
    return FetchRanges(
        tuple(mq.name_servers),
        tuple(parts),
        arrow_schema(selection.columns),
        selection.decoder,
        mq.tls,
        selection.tags,
        selection.sql,
        counted,
    )


def check_topics(topics: str | Sequence[str]) -> list[str]:
    """Return a topic or a list of topics as a list of valid names.

    Raise InvalidInput if a name is invalid or repeated.
    """
    names = [topics] if isinstance(topics, str) else topics
    if not isinstance(names, Sequence) or not names:
        raise InvalidInput("topic", "a topic, or a list of them, each once", topics)
    checked = [check_topic(name) for name in names]
    if len(set(checked)) < len(checked):
        raise InvalidInput("topic", "a topic, or a list of them, each once", topics)
    return checked
