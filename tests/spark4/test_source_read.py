"""Test bounded reads by `spark.read.format("raymq")`, and their refused options."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from raymq import cluster
from raymq.client import Admin, InvalidInput, Message, Producer
from raymq.spark_bridge import SparkBridge, register_source

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Send = Callable[[str, list[str]], None]


def test_source_read_equals_bridge_read(
    mq: cluster.Cluster, bridge: SparkBridge, spark: SparkSession, topic: str
) -> None:
    messages = [
        Message(topic, b"\x00\xff", keys=["a", "b"], tags="red", properties={"p": "1"}),
        Message(topic, "ü".encode(), keys=["c"]),
        Message(topic, b"plain"),
    ]
    with Producer(mq, group="tests") as producer:
        for message in messages:
            producer.send(message)
    df = spark.read.format("raymq").load(topic)
    own = bridge.read(topic)
    assert df.schema.simpleString() == own.schema.simpleString()
    rows = sorted(df.collect(), key=lambda row: row.body)
    assert rows == sorted(own.collect(), key=lambda row: row.body)
    assert [row.tags for row in rows] == ["red", None, None]
    assert rows[0].properties == {"p": "1"}
    assert df.count() == 3


def test_schema_selects_columns_and_decodes_bodies(spark: SparkSession, topic: str, send: Send) -> None:
    sent = ['{"id": 4611686018427387905, "name": "ü"}', '{"id": null}', "no JSON"]
    send(topic, sent)
    reader = spark.read.format("raymq").option("topic", topic)
    df = reader.schema("name STRING, topic STRING, id BIGINT, _corrupt BINARY").load()
    assert df.columns == ["name", "topic", "id", "_corrupt"]
    found = {tuple(row) for row in df.withColumn("_corrupt", df["_corrupt"].cast("string")).collect()}
    assert found == {("ü", topic, 2**62 + 1, None), (None, topic, None, None), (None, topic, None, "no JSON")}
    bodies = reader.schema("body BINARY").load().collect()
    assert sorted(bytes(row.body).decode() for row in bodies) == sorted(sent)


def test_read_options_set_range_and_filter(mq: cluster.Cluster, spark: SparkSession, topic: str) -> None:
    with Producer(mq, group="tests") as producer:
        for number in range(10):
            tag = "even" if number % 2 == 0 else "odd"
            producer.send(Message(topic, str(number).encode(), tags=tag, properties={"n": str(number)}))

    def bodies(**options: object) -> set[int]:
        df = spark.read.format("raymq").options(topic=topic, **options).load()
        return {int(row.body) for row in df.select("body").collect()}

    with Admin(mq) as admin:
        ends = {queue: each.max_offset for queue, each in admin.topic_stats(topic).items()}
    assert bodies() == set(range(10))
    assert bodies(tags="even || none") == {0, 2, 4, 6, 8}
    assert bodies(filter="n > 6") == {7, 8, 9}
    assert bodies(start="latest") == set()
    queue, end = max(ends.items(), key=lambda each: each[1])
    place = f'{{"{topic}": {{"{queue.broker}": {{"{queue.queue_id}": %d}}}}}}'
    assert len(bodies(start=place % (end - 1))) == 1
    assert len(bodies(start=place % 0, end=place % end)) == end


def test_invalid_options_and_schemas_raise(spark: SparkSession, topic: str) -> None:
    reader = spark.read.format("raymq")
    for wrong, schema, expected in (
        ({"topic": topic, "strat": "earliest"}, None, "'strat'"),
        ({}, None, "topic"),
        ({"topic": topic, "start": "soon"}, None, "'soon'"),
        ({"topic": topic, "tasks": "many"}, None, "'many'"),
        ({"topic": topic}, "offset STRING", "offset as bigint"),
        ({"topic": topic}, "id BIGINT NOT NULL", "may be null"),
        ({"topic": topic}, "id BIGINT, body BINARY", "decoded from it"),
        ({"topic": "never-made"}, None, "TopicNotFound"),
    ):
        configured = spark.read.format("raymq").options(**wrong)
        configured = configured if schema is None else configured.schema(schema)
        with pytest.raises(PySparkException) as raised:
            configured.load().collect()
        assert expected in str(raised.value), wrong
    assert reader.load(topic).collect() == []


def test_topic_is_readable_as_sql_view(spark: SparkSession, topic: str, send: Send) -> None:
    send(topic, [str(number) for number in range(120)])
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW numbers USING raymq OPTIONS (topic '{topic}')")
    ((count, total),) = spark.sql("SELECT count(*), sum(cast(cast(body AS STRING) AS INT)) FROM numbers").collect()
    assert (count, total) == (120, 120 * 119 // 2)


def test_actions_of_one_dataframe_read_same_messages(spark: SparkSession, topic: str, send: Send) -> None:
    send(topic, ["a"])
    df = spark.read.format("raymq").load(topic)
    send(topic, ["b"])
    assert df.count() == 2
    send(topic, ["c", "d"])
    assert df.count() == 2
    assert {bytes(row.body) for row in df.filter("offset >= 0").collect()} == {b"a", b"b"}
    assert spark.read.format("raymq").load(topic).count() == 4


def test_recreated_topic_fails_open_dataframe(mq: cluster.Cluster, spark: SparkSession, topic: str, send: Send) -> None:
    send(topic, ["a", "b"])
    df = spark.read.format("raymq").load(topic)
    assert df.count() == 2
    with Admin(mq) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=2)
    send(topic, ["c"] * 200)
    with pytest.raises(PySparkException, match="recreated"):
        df.count()


def test_source_without_cluster_requires_name_servers(mq: cluster.Cluster, spark: SparkSession) -> None:
    register_source(spark)
    try:
        with pytest.raises(PySparkException, match="name_servers"):
            spark.read.format("raymq").load("any").collect()
    finally:
        register_source(spark, mq)
    with pytest.raises(InvalidInput):
        cluster.connect(name_servers=["no port"])
