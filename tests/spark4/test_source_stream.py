"""Test `spark.readStream.format("raymq")`: batches with a limit, runs that end by themselves, and positions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming import StreamingQuery

from raymq import cluster
from raymq.client import Admin
from tests.integration.streamed import PATIENT, Batches, collect_batches, query_failure, running_query
from tests.polling import poll_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Send = Callable[[str, list[str]], None]


def numbers(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def stream(spark: SparkSession, topic: str, **options: object) -> DataFrame:
    df = spark.readStream.format("raymq").options(**options).load(topic)
    return df.select(F.col("body").cast("string").cast("int"))


def ends(query: StreamingQuery, topic: str) -> list[int]:
    """Return how far the query has read each queue that has messages."""
    progress = query.lastProgress
    if progress is None:
        return []
    offset = json.loads(progress["sources"][0]["endOffset"])
    return [end for broker in offset["ends"][topic].values() for end in broker.values() if end]


def read_topics(query: StreamingQuery) -> list[str]:
    """Return the topics whose positions the query has recorded."""
    progress = query.lastProgress
    return [] if progress is None else list(json.loads(progress["sources"][0]["endOffset"])["ends"])


def test_query_continues_from_checkpoint(spark: SparkSession, topic: str, send: Send, tmp_path: Path) -> None:
    send(topic, numbers(0, 60))
    batches = Batches()
    with running_query(collect_batches(stream(spark, topic, start="earliest"), batches), tmp_path) as query:
        batches.wait_for(60, query)
        send(topic, numbers(60, 5))
        batches.wait_for(65, query)
        poll_until(lambda: query.lastProgress["numInputRows"] == 0, PATIENT, "progress of an idle query")
        assert sum(ends(query, topic)) == 65
        (source,) = query.lastProgress["sources"]
        assert json.loads(source["latestOffset"])["ends"] == json.loads(source["endOffset"])["ends"]
    send(topic, numbers(65, 7))
    with running_query(collect_batches(stream(spark, topic, start="earliest"), batches), tmp_path) as query:
        batches.wait_for(72, query)
    assert batches.all == [(number,) for number in range(72)]


def test_available_now_reads_existing_messages_in_small_batches(
    spark: SparkSession, topic: str, send: Send, tmp_path: Path
) -> None:
    """A second run reads what arrived since."""
    send(topic, numbers(0, 950))
    batches = Batches()
    batches.before = lambda batch: send(topic, numbers(950, 100)) if batch == 0 else None

    def run() -> None:
        df = stream(spark, topic, start="earliest", max_offsets_per_batch=300)
        writer = df.writeStream.foreachBatch(batches).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        assert query.awaitTermination(PATIENT)

    run()
    assert batches.all == [(number,) for number in range(950)]
    assert max(map(len, batches.rows.values())) <= 300
    assert len(batches.rows) == 4
    run()
    assert batches.all == [(number,) for number in range(1050)]


def test_latest_reads_messages_after_query_start(spark: SparkSession, topic: str, send: Send, tmp_path: Path) -> None:
    send(topic, numbers(0, 70))
    batches = Batches()
    with running_query(collect_batches(stream(spark, topic), batches), tmp_path) as query:
        poll_until(lambda: query.lastProgress is not None or query.exception(), PATIENT, "its beginning")
        send(topic, numbers(70, 10))
        batches.wait_for(10, query)
    assert batches.all == [(number,) for number in range(70, 80)]


def test_repeated_batch_reads_same_messages(spark: SparkSession, topic: str, send: Send, tmp_path: Path) -> None:
    send(topic, numbers(0, 120))
    failed, batches = Batches(), Batches()

    def fail(batch: int) -> None:
        failed.rows[batch] = [(-1,)]
        raise RuntimeError("the sink fails")

    failed.before = fail
    assert "the sink fails" in query_failure(collect_batches(stream(spark, topic, start="earliest"), failed), tmp_path)
    send(topic, numbers(120, 60))
    with running_query(collect_batches(stream(spark, topic, start="earliest", tasks=3), batches), tmp_path) as query:
        batches.wait_for(180, query)
    assert sorted(batches.rows[0]) == [(number,) for number in range(120)]
    assert batches.all == [(number,) for number in range(180)]


def test_repeated_first_batch_keeps_its_start(spark: SparkSession, topic: str, send: Send, tmp_path: Path) -> None:
    """Spark asks for "latest" again, which is then after the batch's messages."""
    send(topic, numbers(0, 30))
    failed, batches = Batches(), Batches()

    def fail(_: int) -> None:
        raise RuntimeError("the sink fails")

    failed.before = fail
    with running_query(collect_batches(stream(spark, topic), failed), tmp_path) as query:
        poll_until(lambda: query.lastProgress is not None or query.exception(), PATIENT, "its beginning")
        send(topic, numbers(30, 50))
        poll_until(query.exception, PATIENT, "the failure of the sink")
    send(topic, numbers(80, 60))
    with running_query(collect_batches(stream(spark, topic), batches), tmp_path) as query:
        batches.wait_for(110, query)
    assert batches.all == [(number,) for number in range(30, 140)]


def test_new_queues_are_read_from_their_first_message(
    mq: cluster.Cluster, spark: SparkSession, topic: str, send: Send, tmp_path: Path
) -> None:
    send(topic, numbers(0, 60))
    batches = Batches()
    with running_query(collect_batches(stream(spark, topic, start="latest"), batches), tmp_path) as query:
        poll_until(lambda: query.lastProgress is not None or query.exception(), PATIENT, "its beginning")
        with Admin(mq) as admin:
            admin.update_topic(topic, queues=4)
        sent = 60
        while len(ends(query, topic)) < 8:
            assert sent < 5_000, "messages of the new queues are not read"
            send(topic, numbers(sent, 50))
            sent += 50
            batches.wait_for(sent - 60, query)
    assert batches.all == [(number,) for number in range(60, sent)]


def test_added_topic_starts_at_query_start_with_idle_topics(
    spark: SparkSession, topic: str, target: str, send: Send, tmp_path: Path
) -> None:
    """An idle query recorded no position of it, so that "latest" changed each time."""
    send(topic, numbers(0, 60))
    send(target, numbers(1_000, 60))
    batches = Batches()
    with running_query(collect_batches(stream(spark, topic, start="earliest"), batches), tmp_path) as query:
        batches.wait_for(60, query)
    both = f"{topic},{target}"
    with running_query(collect_batches(stream(spark, both, start="latest"), batches), tmp_path) as query:
        poll_until(lambda: target in read_topics(query) or query.exception(), PATIENT, "its beginning")
        send(target, numbers(60, 5))
        batches.wait_for(65, query)
    assert batches.all == [(number,) for number in range(65)]


def test_recreated_topic_ends_query(
    mq: cluster.Cluster, spark: SparkSession, topic: str, send: Send, tmp_path: Path
) -> None:
    """Its offsets are of other messages then: no message is skipped silently."""
    send(topic, numbers(0, 60))
    batches = Batches()
    with running_query(collect_batches(stream(spark, topic, start="earliest"), batches), tmp_path) as query:
        batches.wait_for(60, query)
    with Admin(mq) as admin:
        admin.delete_topic(topic)
        failure = query_failure(collect_batches(stream(spark, topic), Batches()), tmp_path)
        assert "TopicNotFound" in failure, failure
        admin.create_topic(topic, queues=2)
    send(topic, numbers(0, 200))
    failure = query_failure(collect_batches(stream(spark, topic), Batches()), tmp_path)
    assert "StreamBroken" in failure, failure


def test_query_with_skip_continues_after_recreated_topic(
    mq: cluster.Cluster, spark: SparkSession, topic: str, send: Send, tmp_path: Path
) -> None:
    send(topic, numbers(0, 60))
    batches = Batches()
    skipping = {"start": "earliest", "on_data_loss": "skip"}
    with running_query(collect_batches(stream(spark, topic, **skipping), batches), tmp_path) as query:
        batches.wait_for(60, query)
        with Admin(mq) as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, queues=2)
        send(topic, numbers(100, 20))
        batches.wait_for(80, query)
    with running_query(collect_batches(stream(spark, topic, **skipping), batches), tmp_path) as query:
        send(topic, numbers(120, 5))
        batches.wait_for(85, query)
    assert batches.all == [(number,) for number in [*range(60), *range(100, 125)]]


def test_watermarks_and_state_continue_after_restart(
    spark: SparkSession, topic: str, send: Send, tmp_path: Path
) -> None:
    counts: dict[int, int] = {}

    def keep(df: DataFrame, _: int) -> None:
        counts.update({row.key: row["count"] for row in df.collect()})

    def run() -> None:
        df = spark.readStream.format("raymq").option("start", "earliest").schema("key INT, at TIMESTAMP").load(topic)
        counted = df.withWatermark("at", "1 minute").groupBy("key").count()
        writer = counted.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(PATIENT)

    for _ in range(2):
        send(topic, [f'{{"key": {number % 3}, "at": "2024-01-01T00:00:00Z"}}' for number in range(90)])
        run()
    assert counts == {0: 60, 1: 60, 2: 60}
