"""Test the spans of Spark's batches, and the trace context of the rows that they write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("raydp")

from opentelemetry import trace

from raymq import cluster
from raymq.client import Admin, Message, Producer
from raymq.spark_bridge import SparkBridge
from tests.integration.shared_spark import SharedSpark
from tests.polling import poll_until
from tests.recorded_spans import Spans, attributes, links, recorded_spans, span_id, trace_id, traceparent

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


@pytest.fixture
def bridge(shared_spark: SharedSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBridge]:
    """Return the shared Spark with a connection that traces."""
    bridge = shared_spark.bridge
    with cluster.connect(name_servers=shared_spark.mq.name_servers, tracing=True) as traced:
        monkeypatch.setattr(bridge, "_mq", traced)
        monkeypatch.setattr(bridge, "_streams", type(bridge._streams)(bridge.spark, traced, 2))
        yield bridge


@pytest.fixture
def topics(shared_spark: SharedSpark) -> tuple[str, str]:
    """Create a source topic and a target topic."""
    names = tuple(f"traces-{uuid.uuid4().hex[:8]}-{end}" for end in ("from", "to"))
    for name in names:
        Admin(shared_spark.mq).create_topic(name, queues=2)
    return names[0], names[1]


def parents(mq: cluster.Cluster, topic: str) -> list[str | None]:
    table = Admin(mq).read_table(topic)
    return [dict(each or ()).get("traceparent") for each in table.column("properties").to_pylist()]


def test_written_rows_carry_the_context_of_one_span(
    shared_spark: SharedSpark, bridge: SparkBridge, topics: tuple[str, str], spans: Spans
) -> None:
    _, topic = topics
    rows = bridge.spark.range(0, 1_000, 1, 4).selectExpr(
        "cast(id as string) value", "if(id % 2 = 0, map('a', 'b'), null) properties"
    )
    with trace.get_tracer("test").start_as_current_span("job") as job:
        written = bridge.write(rows, topic, "value", properties="properties")
    (send,) = spans.named(f"send {topic}")
    assert send.parent is not None
    assert send.parent.span_id == job.get_span_context().span_id
    assert attributes(send)["messaging.batch.message_count"] == written.rows == 1_000
    assert parents(shared_spark.mq, topic) == [traceparent(send)] * 1_000


def test_untraced_rows_have_no_context(shared_spark: SharedSpark, topics: tuple[str, str], spans: Spans) -> None:
    _, topic = topics
    bridge = shared_spark.bridge
    bridge.write(bridge.spark.range(10).selectExpr("cast(id as string) value"), topic, "value")
    assert parents(shared_spark.mq, topic) == [None] * 10
    assert spans.all() == []


def test_read_and_stream_have_a_span_per_batch(
    shared_spark: SharedSpark, bridge: SparkBridge, topics: tuple[str, str], spans: Spans, tmp_path: Path
) -> None:
    source, target = topics
    with Producer(shared_spark.mq, "p") as producer:
        producer.send_batch([Message(source, b"%d" % number) for number in range(50)])
    bridge.read(source)
    (read,) = spans.named(f"receive {source}")
    assert attributes(read)["messaging.batch.message_count"] == 50
    query = (
        bridge.stream(source, "traces", start="earliest")
        .writeStream.foreachBatch(bridge.sink(target, body="body"))
        .option("checkpointLocation", str(tmp_path))
        .queryName("copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    poll_until(lambda: spans.named("process copy") != [], 60)
    batch, send = spans.named("process copy")[0], spans.named(f"send {target}")[0]
    assert attributes(batch)["raymq.spark.batch"] == attributes(send)["raymq.spark.batch"] == 0
    assert attributes(batch)["raymq.spark.query"] == attributes(send)["raymq.spark.query"] == query.id
    assert links(batch) == [span_id(send)]
    assert trace_id(batch)
    assert batch.start_time is not None
    assert batch.end_time is not None
    assert batch.start_time < (send.start_time or 0) < (send.end_time or 0)
    assert parents(shared_spark.mq, target) == [traceparent(send)] * 50
