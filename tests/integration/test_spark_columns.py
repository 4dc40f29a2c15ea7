"""Test which columns DataFrames write to topics and read from them, on a real cluster and a real Spark."""

from __future__ import annotations

import datetime as dt
import io
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from tests.polling import poll_until

pytest.importorskip("raydp")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from raymq import cluster
from raymq.actors.sending.sender import queue_of_sharding_key
from raymq.client import Admin, InvalidInput, Message, MessageQueue, Producer, PullConsumer, Sql
from raymq.client.errors import TopicNotFound
from raymq.spark_bridge import SparkBridge, session
from tests.integration.shared_spark import SharedSpark
from tests.integration.streamed import PATIENT, Batches, collect_batches, running_query

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def mq(shared_spark: SharedSpark) -> cluster.Cluster:
    return shared_spark.mq


@pytest.fixture(scope="module")
def bridge(shared_spark: SharedSpark) -> SparkBridge:
    return shared_spark.bridge


def new_topic(mq: cluster.Cluster, queues: int = 2) -> str:
    name = f"t{uuid.uuid4().hex[:10]}"
    with Admin(mq) as admin:
        admin.create_topic(name, queues=queues)
    return name


@pytest.fixture
def topic(mq: cluster.Cluster) -> str:
    return new_topic(mq)


def rows_of(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in df.collect()]


def counts(mq: cluster.Cluster, topic: str) -> dict[MessageQueue, int]:
    with Admin(mq) as admin:
        return {queue: stats.max_offset for queue, stats in admin.topic_stats(topic).items()}


# -- read --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def orders(mq: cluster.Cluster) -> tuple[str, str]:
    """Create two topics with 200 messages each: JSON bodies, four tags, one property."""
    topics = new_topic(mq), new_topic(mq)
    with Producer(mq, group="tests") as producer:
        for topic in topics:
            producer.send_batch(
                [
                    Message(topic, b'{"id": %d}' % n, tags=f"tag{n % 4}", keys=[f"k{n}"], properties={"amount": f"{n}"})
                    for n in range(200)
                ]
            )
    return topics


def test_several_topics_are_read_as_one_dataframe(
    mq: cluster.Cluster, bridge: SparkBridge, orders: tuple[str, str]
) -> None:
    df = bridge.read(list(orders), schema="id LONG")
    assert {row["topic"]: row["count"] for row in rows_of(df.groupBy("topic").count())} == dict.fromkeys(orders, 200)
    assert {queue.topic for queue in bridge.offsets(df)} == set(orders)
    queue = next(queue for queue, count in counts(mq, orders[1]).items() if count >= 3)
    part = bridge.read(list(orders), start={queue: 1}, end={queue: 3})
    assert [(row["topic"], row["offset"]) for row in rows_of(part)] == [(orders[1], 1), (orders[1], 2)]
    for wrong in ([], [orders[0], orders[0]], None, [""], ["a b"]):
        with pytest.raises(InvalidInput):
            bridge.read(wrong)  # type: ignore[arg-type]
    with pytest.raises(TopicNotFound):
        bridge.read([orders[0], "no_such_topic"])


def test_read_returns_selected_columns_in_order(bridge: SparkBridge, orders: tuple[str, str]) -> None:
    whole = bridge.read(orders[0], schema="id LONG")
    for columns in (["offset"], ["tags", "queue", "keys"], ["_corrupt", "id"], ["id", "topic"], whole.columns[::-1]):
        df = bridge.read(orders[0], schema="id LONG", columns=columns)
        assert df.columns == columns
        expected, found = whole.select(*columns), df
        if "offset" in columns and "queue" in columns:
            expected, found = expected.orderBy("queue", "offset"), found.orderBy("queue", "offset")
        assert Counter(map(str, rows_of(found))) == Counter(map(str, rows_of(expected)))
    assert bridge.read(orders[0], columns=["body"]).schema["body"].dataType.simpleString() == "binary"
    for wrong in ([], ["nothing"], ["tags", "tags"], "tags", ["id"]):
        with pytest.raises(InvalidInput):
            bridge.read(orders[0], columns=wrong)


def test_tag_and_sql_filters_select_messages(bridge: SparkBridge, orders: tuple[str, str]) -> None:
    def ids(**selection: Any) -> list[int]:
        return sorted(row["id"] for row in rows_of(bridge.read(orders[0], schema="id LONG", **selection)))

    assert ids(tags="tag1 || tag3") == [n for n in range(200) if n % 2]
    assert ids(tags="*") == list(range(200))
    assert ids(filter=Sql("amount between 10 and 13 and TAGS <> 'tag3'")) == [10, 12, 13]
    assert ids(filter=Sql("amount > 1000")) == []
    for wrong in ({"tags": "a ||"}, {"filter": Sql("amount >")}, {"filter": "amount > 3"}):
        with pytest.raises((InvalidInput, TypeError)):
            ids(**wrong)
    with pytest.raises(InvalidInput, match="not together"):
        ids(tags="a", filter=Sql("amount > 3"))


def test_group_resumes_after_committed_read(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    def send(*bodies: bytes) -> None:
        with Producer(mq, group="tests") as producer:
            producer.send_batch([Message(topic, body) for body in bodies])

    send(b"1", b"2")
    first = bridge.read(topic)
    send(b"3")
    assert first.count() == 2
    bridge.commit(first, "etl")
    second = bridge.read(topic, start="group:etl")
    assert [bytes(row["body"]) for row in rows_of(second)] == [b"3"]
    bridge.commit(second, "etl")
    bridge.commit(second, "etl")
    assert bridge.read(topic, start="group:etl").count() == 0
    with PullConsumer(mq, group="etl") as consumer:
        assert {queue: consumer.committed(queue) for queue in counts(mq, topic)} == counts(mq, topic)
    with pytest.raises(InvalidInput):
        bridge.commit(second.where("offset > 1"), "etl")
    with pytest.raises(InvalidInput):
        bridge.commit(second, "no group")


# -- write -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("column", ["keys", "sharding_key"])
def test_rows_of_one_key_stay_in_one_queue_in_order(mq: cluster.Cluster, bridge: SparkBridge, column: str) -> None:
    topic = new_topic(mq, queues=4)
    df = bridge.spark.range(0, 5_000, 1, 3).selectExpr("id", "cast(id AS STRING) AS value", "id % 50 AS customer")
    ordered = df.repartition(3, "customer").sortWithinPartitions("id")
    assert bridge.write(ordered, topic, body="value", **{column: "customer"}).rows == 5_000
    found = rows_of(bridge.read(topic).orderBy("queue", "offset"))
    by_customer: dict[int, list[int]] = defaultdict(list)
    for row in found:
        number = int(bytes(row["body"]))
        by_customer[number % 50].append(number)
        queue = MessageQueue(topic, row["queue"]["broker"], row["queue"]["id"])
        assert queue == queue_of_sharding_key(sorted(counts(mq, topic)), str(number % 50))
    assert by_customer == {customer: list(range(customer, 5_000, 50)) for customer in range(50)}


def test_write_delivers_rows_at_chosen_times(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    soon = time.time() + 4
    df = bridge.spark.createDataFrame(
        [("now", None, None), ("soon", soon, None), ("late", soon + 3_600, None), ("level", None, 1)],
        "value STRING, at DOUBLE, level INT",
    )
    result = bridge.write(df, topic, body="value", deliver_at="at", delay_level="level")
    assert result.rows == 4
    times = df.selectExpr("concat(value, '-time') AS value", "timestamp_micros(cast(at * 1000000 AS LONG)) AS at")
    bridge.write(times.where("at is not null"), topic, body="value", deliver_at="at")

    def stored() -> dict[str, dt.datetime]:
        return {bytes(row["body"]).decode(): row["store_timestamp"] for row in rows_of(bridge.read(topic))}

    found = poll_until(lambda: len(seen := stored()) == 4 and seen, 60)
    assert set(found) == {"now", "soon", "soon-time", "level"}
    assert min(found["soon"], found["soon-time"]).astimezone(dt.UTC).timestamp() >= soon
    for wrong in ({"deliver_at": "value"}, {"delay_level": "at"}, {"sharding_key": "nowhere"}):
        with pytest.raises(InvalidInput):
            bridge.write(df, topic, body="value", **wrong)


@pytest.mark.long
def test_many_small_partitions_fill_queues_evenly(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    df = bridge.spark.range(0, 6_000, 1, 300).where("id >= 400").selectExpr("cast(id AS STRING) AS value")
    assert bridge.write(df, topic, body="value").rows == 5_600
    used = counts(mq, topic)
    assert sum(used.values()) == 5_600
    assert max(used.values()) <= 2 * min(used.values())


def test_workers_preload_modules_before_first_task(bridge: SparkBridge) -> None:
    """Cover a regression: each worker imported modules and read Spark's archives for every task.

    That cost 0.1 s per task.
    """

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import importlib
        import sys
        import zipimport

        reads = 0
        read = zipimport._read_directory  # type: ignore[attr-defined]

        def counted(archive: str) -> object:
            nonlocal reads
            reads += 1
            return read(archive)

        zipimport._read_directory = counted  # type: ignore[attr-defined]
        try:
            importlib.invalidate_caches()
        finally:
            zipimport._read_directory = read  # type: ignore[attr-defined]
        for _ in batches:
            pass
        main = sys.modules["__main__"].__spec__
        frozen = gc.get_freeze_count() > 10_000
        columns = [[main.name if main else ""], [reads], [frozen], ["raymq.client.bulk.staged_writer" in sys.modules]]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), ["main", "reads", "frozen", "loaded"])

    worker_state = (
        bridge.spark.range(1).mapInArrow(look, "main STRING, reads LONG, frozen BOOLEAN, loaded BOOLEAN").first()
    )
    assert worker_state is not None
    assert worker_state.asDict() == {
        "main": "raymq.spark_bridge.worker_daemon",
        "reads": 0,
        "frozen": True,
        "loaded": True,
    }


# -- round trips -------------------------------------------------------------------------------------------------------

#: SQL literals of each Spark type; the first row has only nulls.
VALUES = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127"],
    "SMALLINT": ["-32768", "32767"],
    "INT": ["-2147483648", "0"],
    "BIGINT": ["4611686018427387905", "-9223372036854775808", "9223372036854775807"],
    "FLOAT": ["1.1", "'NaN'", "'-Infinity'", "-0.0"],
    "DOUBLE": ["0.1", "'NaN'", "'Infinity'", "4.9E-324D"],
    "STRING": ["''", "'käse 🧀'", "'\\u0000\\n'"],
    "BINARY": ["X''", "X'00FF80'"],
    "DECIMAL(38,10)": ["9999999999999999999999999999.9999999999", "-0.0000000001"],
    "DECIMAL(5,0)": ["99999", "0"],
    "DATE": ["'0001-01-01'", "'9999-12-31'", "'1969-12-31'"],
    "TIMESTAMP": ["'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.999999'"],
    "TIMESTAMP_NTZ": ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"],
    "ARRAY<INT>": ["array()", "array(1, null, 3)"],
    "ARRAY<ARRAY<STRING>>": ["array(array(), null, array('a', null))"],
    "MAP<STRING,BIGINT>": ["map()", "map('a', 4611686018427387905L, 'b', null)"],
    "MAP<INT,DECIMAL(5,2)>": ["map(7, 1.25, 8, null)"],
    "MAP<ARRAY<INT>,STRING>": ["map(array(1, 2), 'x', array(), 'y')"],
    "MAP<STRUCT<a:DATE>,BOOLEAN>": ["map(named_struct('a', date'2024-05-06'), true)"],
    "STRUCT<a:INT,b:STRUCT<c:TIMESTAMP_NTZ,d:FLOAT>>": [
        "named_struct('a', 1, 'b', named_struct('c', null, 'd', float('NaN')))",
        "named_struct('a', null, 'b', null)",
    ],
    "ARRAY<STRUCT<x:BINARY,y:MAP<STRING,ARRAY<DOUBLE>>>>": [
        "array(named_struct('x', X'FF', 'y', map('k', array(double('NaN'), null))), null)"
    ],
}


def table_of(df: DataFrame) -> pa.Table:
    """Return the rows as Arrow: Python's times lack some zones and years."""
    return pa.Table.from_batches(df.orderBy("id")._collect_as_arrow())  # type: ignore[operator]


def test_struct_of_every_type_is_read_back_unchanged(bridge: SparkBridge, topic: str) -> None:
    columns = {f"c{number}": kind for number, kind in enumerate(VALUES)}
    most = max(map(len, VALUES.values()))
    rows = []
    for row in range(most + 1):
        cells = [
            f"cast({values[(row - 1) % len(values)] if row else 'null'} AS {kind}) AS {name}"
            for (name, kind), values in zip(columns.items(), VALUES.values(), strict=True)
        ]
        rows.append(f"select {row} AS id, {', '.join(cells)}")
    df = bridge.spark.sql(" union all ".join(rows))
    wanted = StructType(df.schema.fields)
    assert bridge.write(df.select(F.struct(*df.columns).alias("value")), topic, body="value").rows == most + 1
    back = bridge.read(topic, schema=wanted)
    assert back.where("_corrupt is not null").count() == 0
    sent, found = table_of(df), table_of(back.select(*df.columns))
    assert [field.type for field in found.schema] == [field.type for field in sent.schema]
    for name, kind in {"id": "INT", **columns}.items():
        assert str(found.column(name).to_pylist()) == str(sent.column(name).to_pylist()), kind


def test_write_of_empty_dataframe_stores_no_rows(bridge: SparkBridge, topic: str) -> None:
    for df in (
        bridge.spark.createDataFrame([], "value STRING, k LONG"),
        bridge.spark.range(5).where("id > 9").selectExpr("'x' AS value", "id AS k"),
        bridge.spark.range(0, 0, 1, 3).selectExpr("'x' AS value", "id AS k"),
    ):
        assert bridge.write(df, topic, body="value", keys="k").rows == 0
    assert bridge.read(topic, columns=["offset"]).count() == 0
    assert rows_of(bridge.read(topic, schema="id LONG")) == []


def test_empty_lists_and_maps_are_read_back(bridge: SparkBridge, topic: str) -> None:
    """Cover lists and maps for which Java's Arrow sends empty buffers."""
    df = bridge.spark.range(3).selectExpr(
        "named_struct('a', cast(array() AS ARRAY<ARRAY<STRING>>)) AS value",
        "cast(if(id = 0, null, array()) AS ARRAY<STRING>) AS keys",
        "cast(if(id = 1, null, map()) AS MAP<STRING,STRING>) AS more",
    )
    assert bridge.write(df, topic, body="value", keys="keys", properties="more").rows == 3
    back = rows_of(bridge.read(topic, schema="a ARRAY<ARRAY<STRING>>", columns=["keys", "a", "properties"]))
    assert back == [{"keys": [], "a": [], "properties": {"content-type": "application/msgpack"}}] * 3


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("interval 1 day", "value.a"),
        ("interval 2 month", "value.a"),
        ("array(interval 1 day)", "value.a.element"),
        ("map('k', named_struct('deep', interval 1 second))", "value.a.value.deep"),
        ("named_struct('x', 1, 'x', 2)", "value.a"),
    ],
)
def test_unsupported_type_error_names_column(bridge: SparkBridge, topic: str, value: str, place: str) -> None:
    df = bridge.spark.range(1).selectExpr(f"named_struct('a', {value}) AS value")
    with pytest.raises(InvalidInput, match=f"body: .*'{place}: "):
        bridge.write(df, topic, body="value")


def test_out_of_range_timestamp_error_names_column(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    df = bridge.spark.range(1).selectExpr("named_struct('ok', 1, 'when', timestamp_seconds(300000000000)) AS value")
    with pytest.raises(Exception, match=r"InvalidInput: body: .*when"):
        bridge.write(df, topic, body="value")
    assert sum(counts(mq, topic).values()) == 0


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_bar_is_shown_only_on_terminal(
    bridge: SparkBridge, topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    rows = bridge.spark.range(0, 25_000, 1, 4).selectExpr("cast(id AS STRING) AS value")
    assert bridge.write(rows, topic, body="value", progress=True).rows == 25_000
    assert bridge.read(topic, progress=True, columns=["offset"]).count() == 25_000
    assert capfd.readouterr() == ("", "")
    console = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    monkeypatch.setattr(session, "progress_console", lambda: console)
    assert bridge.write(rows, topic, body="value", progress=True).rows == 25_000
    assert f"write {topic}" in screen.getvalue()
    assert "4/4" in screen.getvalue()
    df = bridge.read(topic, progress=True, columns=["offset"])
    assert df.count() == 50_000
    poll_until(lambda: "50000/50000" in screen.getvalue(), 20)
    assert f"read {topic}" in screen.getvalue()
    with pytest.raises((InvalidInput, TypeError)):
        bridge.read(topic, progress="yes")  # type: ignore[arg-type]


def test_stream_progress_bar_is_shown_only_on_terminal(
    mq: cluster.Cluster,
    bridge: SparkBridge,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    screen, batches = io.StringIO(), Batches()
    with Producer(mq, group="tests") as producer:
        producer.send_batch([Message(topic, b"%d" % number) for number in range(30)])
    bridge.stream(topic, f"dark-{topic}", progress=True)
    assert capfd.readouterr() == ("", "")
    console = Console(file=screen, force_terminal=True, width=100, color_system=None, _environ={"TERM": "xterm"})
    monkeypatch.setattr(session, "progress_console", lambda: console)
    stream = bridge.stream(topic, f"lit-{topic}", start="earliest", max_offsets_per_batch=7, progress=True)
    with running_query(collect_batches(stream.select("offset"), batches), tmp_path) as query:
        batches.wait_for(30, query)
        poll_until(lambda: re.search(r"stream lit-[^\r]* ([0-9]+)/\1 ", screen.getvalue()), PATIENT, "a bar at its end")
    assert "dark" not in screen.getvalue()
    with pytest.raises((InvalidInput, TypeError)):
        bridge.stream(topic, "s", progress="yes")  # type: ignore[arg-type]
