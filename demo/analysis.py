"""Run the demo's Spark part.

Both topics become DataFrames, SQL computes an aggregate, and the aggregate becomes a topic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from raymq.client import Connection, PullConsumer
from raymq.demo.demo_messaging import ROW
from raymq.spark_bridge import SparkBridge

#: A row that was sent twice counts once; `{value}` is the measure as a number, `{mean}` its mean if JSON can hold it.
_BY_TAG = """
with event as (
  select properties['{row}'] as row, first(tags) as tags, first(cast(body as string)) as body
  from events group by properties['{row}']
), dead as (
  select distinct properties['{row}'] as row from dead_letters
), by_tag as (
  select tags, count(*) as rows, count(dead.row) as dead_letters, round(avg({value}), 2) as mean
  from event left join dead on event.row = dead.row
  group by tags
)
select tags, rows, dead_letters, {mean} as mean from by_tag order by rows desc, tags
"""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Spark's results: distinct rows of both topics, and one summary per tag, largest first."""

    rows: int
    dead_letters: int
    summary: list[dict[str, Any]]


def analyse(
    bridge: SparkBridge, topic: str, dead_topic: str | None, summary_topic: str, measure: str | None
) -> Analysis:
    """Read both topics, aggregate by tag, and write the result to `summary_topic`.

    With `dead_topic=None` there are no dead letters.
    """
    events = bridge.read(topic)
    events.createOrReplaceTempView("events")
    (events.limit(0) if dead_topic is None else bridge.read(dead_topic)).createOrReplaceTempView("dead_letters")
    by_tag = bridge.spark.sql(_BY_TAG.format(row=ROW, value=_finite(_number(measure)), mean=_finite("mean"))).cache()
    summary = [row.asDict() for row in by_tag.collect()]
    as_json = "to_json(struct(*), map('ignoreNullFields', 'false')) as body"
    bridge.write(by_tag.selectExpr(as_json, "tags"), summary_topic, body="body", keys="tags")
    by_tag.unpersist()
    return Analysis(sum(s["rows"] for s in summary), sum(s["dead_letters"] for s in summary), summary)


def read_summary(mq: Connection, topic: str) -> list[dict[str, Any]]:
    """Return the summary from its topic, in the order of `Analysis.summary`."""
    found = []
    with PullConsumer(mq, "demo-summary") as consumer:
        for queue in consumer.queues(topic):
            while messages := consumer.poll(queue, 1_000, 0.0):
                found += [json.loads(message.body) for message in messages]
    return sorted(found, key=lambda summary: (-summary["rows"], summary["tags"]))


def _finite(number: str) -> str:
    """Return the SQL of a number that is null if it is not finite.

    Spark converts the value "NaN" to a number, and large values overflow.
    """
    return f"if(abs({number}) < double('Infinity'), {number}, null)"


def _number(column: str | None) -> str:
    """Return the SQL of a field of the body as a number."""
    if column is None:
        return "cast(null as double)"
    path = "$['" + column.replace("\\", "\\\\").replace("'", "\\'") + "']"
    return f"cast(get_json_object(body, {json.dumps(path)}) as double)"
