"""Topics as a bounded DataFrame: planned on the driver, fetched by the tasks from the brokers."""

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
from raymq.client.bulk.streams import Origin
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput
from raymq.client.members.subscription import SqlWanted, TagFilter
from raymq.spark_bridge.decode import FORMATS, BodyDecoder
from raymq.spark_bridge.plan import Lineage
from raymq.spark_bridge.progress_bars import MessagesShown
from raymq.spark_bridge.ranges import Position, Range, cut, lineages_of, plan
from raymq.spark_bridge.schema import arrow_schema, chosen_columns, message_schema, parse_schema
from raymq.spark_bridge.tasks import FetchRanges

#: Tasks for every core, so that one slow broker does not hold up the rest.
TASKS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class Selection:
    """What a read takes of the messages in its ranges: which of them, and what of each."""

    columns: StructType
    decoder: BodyDecoder | None
    tags: frozenset[str] | None
    sql: str | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a read covers: ranges, and of which messages these were when it was planned."""

    ranges: Sequence[Range]
    planned: Mapping[Origin, Lineage]


def select(
    schema: str | DataType | None,
    format: str,  # noqa: A002 - the public name
    columns: Sequence[str] | None,
    tags: str | None,
    filter: Sql | None,  # noqa: A002 - the public name
) -> Selection:
    """Check what `SparkBridge.read` was told; InvalidInput."""
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
        SqlWanted(filter.expression).check()
    return Selection(
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
    selection: Selection,
    cores: int,
    console: Console | None = None,
    *,
    skip_losses: bool = False,
) -> tuple[DataFrame, Reading]:
    """Return the DataFrame and what it covers, see `SparkBridge.read`. `console` is for its progress."""
    names = checked_topics(topics)
    planned = lineages_of(mq, names)  # first: what changes while it is planned is found by the tasks
    ranges = plan(mq, names, start, end, skip_losses=skip_losses)
    parts = cut(ranges, cores * TASKS_PER_CORE)
    if not parts:
        return spark.createDataFrame([], selection.columns), Reading(ranges, planned)
    counted = None
    if console is not None:
        total = sum(part.end - part.start for part in parts)
        shown = MessagesShown(spark.sparkContext, f"read {', '.join(names)}", total, console)
        counted = spark.sparkContext.accumulator(0, shown)
    fetch = replace(fetch_of(mq, parts, selection, counted), planned=planned, skip_losses=skip_losses)
    df = spark.range(0, len(parts), 1, len(parts)).mapInArrow(fetch, selection.columns)
    return df, Reading(ranges, planned)


def fetch_of(
    mq: Connection, parts: Iterable[Range], selection: Selection, counted: Accumulator[int] | None = None
) -> FetchRanges:
    """What the tasks do that fetch these ranges; they add to `counted` how many messages they have looked at."""
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


def checked_topics(topics: str | Sequence[str]) -> list[str]:
    """The topics of a name, or of a list of names; InvalidInput where they are none, or one is named twice."""
    names = [topics] if isinstance(topics, str) else topics
    if not isinstance(names, Sequence) or not names:
        raise InvalidInput("topic", "a topic, or a list of them, each once", topics)
    checked = [check_topic(name) for name in names]
    if len(set(checked)) < len(checked):
        raise InvalidInput("topic", "a topic, or a list of them, each once", topics)
    return checked
