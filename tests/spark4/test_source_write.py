"""Test `df.write` and `df.writeStream.format("raymq")`: all rows or none, and each batch once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from raymq import cluster
from raymq.client import Admin
from raymq.spark_bridge import SparkBridge
from tests.integration.streamed import PATIENT, running_query
from tests.polling import poll_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Send = Callable[[str, list[str]], None]


def content(bridge: SparkBridge, topic: str) -> Counter[str]:
    return Counter(bytes(row.body).decode() for row in bridge.read(topic).select("body").collect())


def test_written_rows_are_read_with_all_columns(bridge: SparkBridge, spark: SparkSession, target: str) -> None:
    df = spark.range(300).selectExpr(
        "named_struct('id', id, 'half', id / 2, 'none', cast(null AS INT)) AS body",
        "array(concat('k', id % 7), 'all') AS keys",
        "if(id % 2 = 0, 'even', null) AS tags",
        "map('p', cast(id AS STRING)) AS properties",
    )
    df.write.format("raymq").mode("append").save(target)
    rows = bridge.read(target, schema="id BIGINT, half DOUBLE, none INT").collect()
    assert sorted(row.id for row in rows) == list(range(300))
    for row in rows:
        assert (row.half, row.none, row._corrupt) == (row.id / 2, None, None)
        assert row.keys == [f"k{row.id % 7}", "all"]
        assert row.tags == ("even" if row.id % 2 == 0 else None)
        assert row.properties == {"p": str(row.id), "content-type": "application/msgpack"}
    by_key: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        by_key.setdefault(row.keys[0], set()).add((row.queue.broker, row.queue.id))
    assert all(len(queues) == 1 for queues in by_key.values()), "rows of a key go to one queue"


def test_failed_task_writes_no_row(bridge: SparkBridge, spark: SparkSession, target: str) -> None:
    df = spark.range(0, 20_000, 1, 4).selectExpr(
        "if(id = 19999, raise_error('row 19999 is bad'), cast(id AS STRING)) AS body"
    )
    with pytest.raises(PySparkException, match="row 19999 is bad"):
        df.write.format("raymq").mode("append").save(target)
    assert content(bridge, target).total() == 0
    spark.range(10).selectExpr("cast(id AS STRING) AS body").write.format("raymq").mode("append").save(target)
    assert content(bridge, target).total() == 10


def test_empty_dataframe_writes_no_row(bridge: SparkBridge, spark: SparkSession, target: str) -> None:
    spark.range(0).selectExpr("cast(id AS STRING) AS body").write.format("raymq").mode("append").save(target)
    assert content(bridge, target).total() == 0


def test_invalid_write_raises_with_column_name(spark: SparkSession, target: str) -> None:
    row = spark.range(1)
    for df, mode, expected in (
        (row.selectExpr("'x' AS body"), "overwrite", "append"),
        (row.selectExpr("'x' AS value"), "append", "body"),
        (row.selectExpr("'x' AS body", "id AS keys"), "append", "array<string>"),
        (row.selectExpr("'x' AS body", "id"), "append", "'id'"),
        (row.selectExpr("named_struct('a', interval 1 month) AS body"), "append", "body.a"),
    ):
        with pytest.raises(PySparkException) as raised:
            df.write.format("raymq").mode(mode).save(target)
        assert expected in str(raised.value), df.schema


def test_repeated_batch_is_written_once(
    bridge: SparkBridge, spark: SparkSession, topic: str, target: str, send: Send, tmp_path: Path
) -> None:
    """As if it had died between the commit and its own note of it."""

    def run() -> None:
        df = spark.readStream.format("raymq").options(start="earliest", max_offsets_per_batch=100).load(topic)
        writer = df.select("body").writeStream.format("raymq").option("topic", target).trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(PATIENT)

    sent = [str(number) for number in range(250)]
    send(topic, sent)
    run()
    assert content(bridge, target) == Counter(sent)
    newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (newest, newest.with_name(f".{newest.name}.crc")):
        path.unlink(missing_ok=True)
    more = [str(number) for number in range(250, 300)]
    send(topic, more)
    run()
    assert content(bridge, target) == Counter(sent + more)
    assert int(max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).name) > int(newest.name)


def test_named_sink_writes_each_row_once(
    bridge: SparkBridge, spark: SparkSession, topic: str, target: str, send: Send, tmp_path: Path
) -> None:
    """A sink's name separates its series from that of the bridge's own sink."""
    send(topic, ["a", "b", "c"])
    df = spark.readStream.format("raymq").option("start", "earliest").load(topic).select("body")
    writer = (
        df.writeStream.format("raymq").options(topic=target, name="left").trigger(processingTime="200 milliseconds")
    )
    with running_query(writer, tmp_path) as query:
        poll_until(lambda: query.exception() or content(bridge, target).total() >= 3, PATIENT, "three messages")
        assert query.exception() is None
    assert content(bridge, target) == Counter("abc")


#: Plain Spark, without Ray: the source needs only the name servers' addresses.
PROGRAM = """
    import sys
    import time
    from pathlib import Path

    from pyspark.sql import SparkSession

    from raymq import cluster
    from raymq.spark_bridge import register_source

    servers, source, target, folder = sys.argv[1:]
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"}
    settings["spark.ui.showConsoleProgress"] = "false"
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with cluster.connect(name_servers=servers.split(",")) as mq:
        register_source(spark, mq)
    df = spark.readStream.format("raymq").options(start="earliest", max_offsets_per_batch=500).load(source)
    writer = df.select("body").writeStream.format("raymq").option("topic", target)
    writer = writer.option("checkpointLocation", folder + "/checkpoint")
    query = writer.trigger(processingTime="50 milliseconds").start()
    while not Path(folder, "stop").exists() and query.isActive:
        time.sleep(0.1)
    if query.exception() is not None:
        raise query.exception()
    query.stop()
    spark.stop()
"""


@contextlib.contextmanager
def program(folder: Path, mq: cluster.Cluster, topic: str, target: str) -> Iterator[subprocess.Popen[bytes]]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(script), ",".join(mq.name_servers), topic, target, str(folder)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the JVM and Python workers are in the same session
        process.wait()


@pytest.mark.timeout(900)
def test_topic_to_topic_is_exact_over_kills_of_driver_and_broker(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, target: str, send: Send, tmp_path: Path
) -> None:
    """With live producers every message is in the target topic once."""
    sent, killed = 0, list[int]()

    def batches() -> int:
        return max((int(path.name) + 1 for path in (tmp_path / "checkpoint/commits").glob("[0-9]*")), default=0)

    for life in ("killed", "killed beside a broker", "killed", "to the end"):
        done = batches()
        with program(tmp_path, mq, topic, target) as process:
            deadline = time.monotonic() + 200
            while batches() < done + 3 and process.poll() is None and time.monotonic() < deadline:
                if sent < 300 * (batches() + 2):  # producers that do not run away from a slow machine
                    send(topic, [str(number) for number in range(sent, sent + 100)])
                    sent += 100
                time.sleep(0.1)  # the producers' pace, no wait
                if life == "killed beside a broker" and not killed and batches() >= done + 1:
                    with Admin(mq) as admin:
                        killed = [each.pid for each in admin.cluster_info().brokers if each.name == "broker-b"]
                    os.kill(killed[0], signal.SIGKILL)
            assert batches() >= done + 3, (tmp_path / "log").read_text()[-3_000:]
            if life == "to the end":
                poll_until(lambda: content(bridge, target).total() >= sent, PATIENT, "every message")  # noqa: B023
                (tmp_path / "stop").touch()
                assert process.wait(60) == 0, (tmp_path / "log").read_text()[-3_000:]
    assert content(bridge, target) == Counter(map(str, range(sent)))


def test_large_partition_is_written_in_bounded_chunks(bridge: SparkBridge, spark: SparkSession, target: str) -> None:
    """40 MB in one partition: chunks are cut by size, and all of them are stored."""
    df = spark.range(0, 40_000, 1, 1).selectExpr("concat(cast(id AS STRING), '-', repeat('x', 1000)) AS body")
    df.write.format("raymq").mode("append").save(target)
    sizes = bridge.read(target).selectExpr("count(*) AS n", "count(DISTINCT body) AS d").collect()
    assert [tuple(row) for row in sizes] == [(40_000, 40_000)]
