"""Test topics as streaming DataFrames, on a real cluster and a real Spark shared by the module."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import ray

from tests.polling import poll_until

pytest.importorskip("raydp")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from raymq import cluster
from raymq.client import Admin, InvalidInput, Message, MessageQueue, Producer, Sql
from raymq.client.errors import NotFoundError, RayMQError, TopicNotFound
from raymq.spark_bridge import SparkBridge
from tests.integration.shared_spark import SharedSpark
from tests.integration.streamed import PATIENT, Batches, collect_batches, query_failure, running_query

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


def send(mq: cluster.Cluster, topic: str, bodies: list[str], queue: MessageQueue | None = None) -> None:
    with Producer(mq, group="tests") as producer:
        producer.send_batch([Message(topic, body.encode()) for body in bodies], queue=queue)


def numbers(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def bodies(df: DataFrame) -> DataFrame:
    return df.select(F.col("body").cast("string").cast("int"))


def test_stream_starts_at_definition_and_resumes_at_checkpoint(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    send(mq, topic, numbers(0, 5))
    batches, name = Batches(), f"s-{topic}"
    stream = bridge.stream(topic, name)
    assert stream.isStreaming
    assert stream.columns == bridge.read(topic).columns
    with pytest.raises(NotFoundError, match="planned"):
        bridge.progress(name)
    send(mq, topic, numbers(5, 10))  # before the first batch is planned
    with running_query(collect_batches(bodies(stream), batches), tmp_path) as query:
        batches.wait_for(10, query)
        send(mq, topic, numbers(15, 5))
        batches.wait_for(15, query)
    send(mq, topic, numbers(20, 7))
    with running_query(collect_batches(bodies(bridge.stream(topic, name)), batches), tmp_path) as query:
        batches.wait_for(22, query)
        poll_until(lambda: sum(each.lag for each in bridge.progress(name).values()) == 0, PATIENT, "no lag")
        progress = bridge.progress(name)
    assert batches.all == [(number,) for number in range(5, 27)]
    assert sum(each.end for each in progress.values()) == 27
    assert len(progress) == 4
    send(mq, topic, numbers(27, 3))
    assert sum(each.lag for each in bridge.progress(name).values()) == 3


def test_new_checkpoint_begins_at_start_option(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    queue = MessageQueue(topic, "broker-a", 1)
    send(mq, topic, numbers(0, 10), queue=queue)
    with Admin(mq) as admin:
        places = dict.fromkeys(admin.topic_stats(topic), 0)
    for where, expected in (("earliest", range(10)), ({**places, queue: 6}, range(6, 10))):
        batches = Batches()
        stream = bodies(bridge.stream(topic, "again", start=where))
        with running_query(collect_batches(stream, batches), tmp_path / str(len(expected))) as query:
            batches.wait_for(len(expected), query)
        assert batches.all == [(number,) for number in expected]


def test_repeated_batch_reads_same_messages(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    """Repeat a batch after new messages and with another number of tasks."""
    send(mq, topic, numbers(0, 20))
    failed, batches = Batches(), Batches()

    def fail(batch: int) -> None:
        failed.rows[batch] = [(-1,)]
        raise RuntimeError("the sink fails")

    failed.before = fail
    stream = bodies(bridge.stream(topic, topic, "earliest"))
    assert "the sink fails" in query_failure(collect_batches(stream, failed), tmp_path)
    assert failed.rows == {0: [(-1,)]}
    send(mq, topic, numbers(20, 9))
    bridge._streams._cores = 3
    try:
        stream = bodies(bridge.stream(topic, topic, "earliest"))
    finally:
        bridge._streams._cores = 2
    with running_query(collect_batches(stream, batches), tmp_path) as query:
        batches.wait_for(29, query)
    assert sorted(batches.rows[0]) == [(number,) for number in range(20)]
    assert batches.all == [(number,) for number in range(29)]


@pytest.mark.long
def test_available_now_reads_batches_of_limited_size(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    """Read several batches, where Spark itself ends after one; keep later messages for later."""
    send(mq, topic, numbers(0, 100))
    batches = Batches()
    batches.before = lambda batch: send(mq, topic, numbers(1_000 + batch, 1))
    stream = bodies(bridge.stream(topic, topic, "earliest", max_offsets_per_batch=30))
    starts: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        writer = stream.writeStream.foreachBatch(batches).trigger(availableNow=True)
        starts.append(writer.option("checkpointLocation", str(tmp_path)).start())
        return starts[-1]

    assert bridge.run_available_now(start).id == starts[0].id
    assert [len(batches.rows[number]) for number in range(len(batches.rows))] == [30, 30, 30, 10]
    assert batches.all == [(number,) for number in range(100)]
    assert sum(each.lag for each in bridge.progress(topic).values()) == 4
    batches.before = lambda _: None
    bridge.run_available_now(start)
    assert batches.all == [*((number,) for number in range(100)), *((1_000 + batch,) for batch in range(4))]
    of_another = bridge.spark.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
    endless = stream.writeStream.foreachBatch(batches).option("checkpointLocation", str(tmp_path / "endless"))
    for wrong in (lambda: None, of_another.start, endless.start):
        with pytest.raises(InvalidInput, match="start_query"):
            bridge.run_available_now(wrong)
    assert not bridge.spark.streams.active


def test_available_now_fails_if_query_stops_reading_stream(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    send(mq, topic, numbers(0, 5))

    def first_only(df: DataFrame, batch: int) -> None:
        if batch == 0:
            df.collect()

    stream = bridge.stream(topic, topic, "earliest", max_offsets_per_batch=2)
    with pytest.raises(RayMQError, match="reads no further"):
        bridge.run_available_now(
            lambda: (
                stream.writeStream.foreachBatch(first_only)
                .trigger(availableNow=True)
                .option("checkpointLocation", str(tmp_path))
                .start()
            )
        )


@pytest.mark.long
def test_watermarked_windows_count_once_and_drop_late_messages(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    batches = Batches()
    stream = bridge.stream(topic, topic, schema="at TIMESTAMP, n INT")
    counts = (
        stream.withWatermark("at", "10 seconds")
        .groupBy(F.window("at", "10 seconds"))
        .agg(F.count("*"), F.sum("n"))
        .select(F.col("window.start").cast("long"), "count(1)", "sum(n)")
    )

    def at(*seconds: int) -> list[str]:
        return [json.dumps({"at": second, "n": 1}) for second in seconds]

    writer = collect_batches(counts, batches).outputMode("append")
    with running_query(writer, tmp_path) as query:
        send(mq, topic, at(*range(100, 120), 131))  # so the watermark is 121: the first two windows are closed
        batches.wait_for(2, query)
        send(mq, topic, at(101, 125))  # 101 is late
        poll_until(lambda: sum(each.lag for each in bridge.progress(topic).values()) == 0, PATIENT, "it is read")
        send(mq, topic, at(171))
        batches.wait_for(4, query)
    assert batches.all == [(100, 10, 10), (110, 10, 10), (120, 1, 1), (130, 1, 1)]


@pytest.mark.long
def test_stream_joins_with_table_and_other_stream(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-right"
    with Admin(mq) as admin:
        admin.create_topic(other, queues=1)
    table = bridge.spark.createDataFrame([(number, f"name {number}") for number in range(10)], "id INT, name STRING")
    left = bridge.stream(topic, f"{topic}-l", schema="id INT").select("id")
    right = bridge.stream(other, f"{topic}-r", schema="id INT, price INT").select("id", "price")
    batches = Batches()
    with running_query(collect_batches(left.join(right, "id").join(table, "id"), batches), tmp_path) as query:
        send(mq, topic, [json.dumps({"id": number}) for number in range(4)])
        send(mq, other, [json.dumps({"id": number, "price": 10 * number}) for number in (2, 1)])
        batches.wait_for(2, query)
        send(mq, other, [json.dumps({"id": 3, "price": 30})])  # the matching row is in the state
        batches.wait_for(3, query)
    assert batches.all == [(number, 10 * number, f"name {number}") for number in (1, 2, 3)]


def test_two_topics_are_read_as_one_stream(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-2"
    with Admin(mq) as admin:
        admin.create_topic(other, queues=1)
    batches = Batches()
    stream = bridge.stream([topic, other], topic)
    with running_query(
        collect_batches(stream.select("topic", F.col("body").cast("string")), batches), tmp_path
    ) as query:
        send(mq, topic, ["a"])
        send(mq, other, ["b"])
        batches.wait_for(2, query)
    assert batches.all == [(topic, "a"), (other, "b")]


def test_brokers_filter_columns_and_messages_of_stream(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    batches = Batches()
    stream = bridge.stream(topic, topic, columns=["tags", "offset"], filter=Sql("n > 7"))
    assert stream.columns == ["tags", "offset"]
    queue = MessageQueue(topic, "broker-a", 0)
    with running_query(collect_batches(stream, batches), tmp_path) as query, Producer(mq, group="tests") as producer:
        for _ in range(2):
            producer.send_batch(
                [Message(topic, b"x", tags=f"t{n}", properties={"n": f"{n}"}) for n in range(10)], queue=queue
            )
        batches.wait_for(4, query)
        poll_until(lambda: sum(each.lag for each in bridge.progress(topic).values()) == 0, PATIENT, "all is read")
    assert batches.all == [("t8", 8), ("t8", 18), ("t9", 9), ("t9", 19)]


@pytest.mark.long
def test_query_state_survives_restart(mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path) -> None:
    latest: dict[int, int] = {}

    def keep(df: DataFrame, _: int) -> None:
        latest.update({row[0]: row[1] for row in df.collect()})

    def counting() -> DataStreamWriter:
        counts = bridge.stream(topic, topic, schema="key INT").groupBy("key").count()
        return counts.writeStream.foreachBatch(keep).outputMode("update").trigger(processingTime="200 milliseconds")

    for round_number in range(1, 4):
        with running_query(counting(), tmp_path) as query:
            send(mq, topic, [json.dumps({"key": number % 5}) for number in range(50)])
            poll_until(lambda: latest.get(0) == 10 * round_number, PATIENT, "counted")  # noqa: B023
            assert query.exception() is None
    assert latest == dict.fromkeys(range(5), 30)


def test_new_queues_are_read_from_first_message(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    batches = Batches()
    with running_query(collect_batches(bodies(bridge.stream(topic, topic)), batches), tmp_path) as query:
        send(mq, topic, numbers(0, 3))
        batches.wait_for(3, query)
        with Admin(mq) as admin:
            admin.update_topic(topic, queues=3)
        send(mq, topic, numbers(3, 4), queue=MessageQueue(topic, "broker-b", 2))
        batches.wait_for(7, query)
    assert batches.all == [(number,) for number in range(7)]


def test_deleted_or_recreated_topic_fails_query(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    batches = Batches()
    send(mq, topic, numbers(0, 3))
    stream = bodies(bridge.stream(topic, topic, "earliest"))
    with running_query(collect_batches(stream, batches), tmp_path) as query:
        batches.wait_for(3, query)
        with Admin(mq) as admin:
            admin.delete_topic(topic)
        with pytest.raises(StreamingQueryException, match="TopicNotFound"):
            query.awaitTermination(PATIENT)
    with Admin(mq) as admin:
        admin.create_topic(topic, queues=2)
    send(mq, topic, numbers(100, 20))
    assert re.search("StreamBroken: .* recreated", query_failure(collect_batches(stream, batches), tmp_path))
    assert batches.all == [(0,), (1,), (2,)]


def test_on_data_loss_skip_continues_with_recreated_topic(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    batches = Batches()
    send(mq, topic, numbers(0, 3))
    stream = bodies(bridge.stream(topic, topic, "earliest", on_data_loss="skip"))
    with running_query(collect_batches(stream, batches), tmp_path) as query, Admin(mq) as admin:
        batches.wait_for(3, query)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=2)
        send(mq, topic, numbers(100, 20))
        batches.wait_for(23, query)
        skipped = [each for each in bridge.progress(topic).values() if each.skip_reason is not None]
    assert batches.all == [(number,) for number in [*range(3), *range(100, 120)]]
    assert skipped
    assert all("recreated" in each.skip_reason or "not exist" in each.skip_reason for each in skipped)
    with pytest.raises(InvalidInput, match="on_data_loss"):
        bridge.stream(topic, topic, on_data_loss="ignore")


def test_checkpoint_of_another_stream_is_refused(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    """Refuse it: the stream would begin at start= in the middle of the query."""
    batches = Batches()
    send(mq, topic, numbers(0, 4))
    with running_query(collect_batches(bodies(bridge.stream(topic, topic, "earliest")), batches), tmp_path) as query:
        batches.wait_for(4, query)
        poll_until(lambda: bridge._streams._completed.last_completed(query.id) > 0, PATIENT, "two batches")
    other = bodies(bridge.stream(topic, f"{topic}-2", "earliest"))
    assert re.search(
        "StreamBroken: .* has no plan of the query", query_failure(collect_batches(other, batches), tmp_path)
    )
    assert len(batches.all) == 4


@pytest.mark.long
def test_example_prints_documented_output(
    mq: cluster.Cluster, bridge: SparkBridge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parents[2] / "examples" / "departures_per_hour.py"
    program = runpy.run_path(str(path))
    program["main"](mq, bridge, str(tmp_path))
    assert capsys.readouterr().out == textwrap.dedent(program["__doc__"].partition("It prints:\n")[2])


def test_invalid_stream_arguments_are_refused(mq: cluster.Cluster, bridge: SparkBridge, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        bridge.stream("no_such_topic", "s")
    for arguments in (
        *({"query": each} for each in ("", "a b", "x" * 65, "a/b", None, 7)),
        *({"topics": each} for each in ([], [topic, topic], None, {topic}, "a b")),
        *({"max_offsets_per_batch": each} for each in (0, -1, 1.5, True, "9")),
        *({"start": each} for each in ("early", None, math.nan, {MessageQueue(topic, "broker-a", 0): 0})),
        *({"schema": "no ddl,"}, {"format": "xml"}, {"schema": "offset INT"}),
        *({"columns": ["nowhere"]}, {"tags": "a", "filter": Sql("n > 1")}, {"filter": "n > 1"}),
    ):
        with pytest.raises(InvalidInput):
            bridge.stream(**{"topics": topic, "query": "s", **arguments})
    with pytest.raises(InvalidInput):
        bridge.progress("a b")
    with pytest.raises(NotFoundError):
        bridge.progress("nobody-s")


@pytest.mark.long
def test_broker_and_executor_kill_causes_no_loss_or_duplicate(
    mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path
) -> None:
    """Kill a broker, for which the batch waits, and an executor, which repeats it."""
    batches, stopped = Batches(), threading.Event()

    def produce() -> None:
        with Producer(mq, group="tests", timeout=30.0) as producer:
            number = 0
            while not stopped.is_set():
                producer.send_batch([Message(topic, b"%d" % (number + each)) for each in range(20)])
                number += 20

    def offsets(df: DataFrame) -> DataFrame:
        return df.select("queue.broker", "queue.id", "offset")

    producing = threading.Thread(target=produce)
    with running_query(collect_batches(offsets(bridge.stream(topic, topic)), batches), tmp_path) as query:
        producing.start()
        try:
            batches.wait_for(200, query)
            with Admin(mq) as admin:
                os.kill(
                    next(each.pid for each in admin.cluster_info().brokers if each.name == "broker-a"), signal.SIGKILL
                )
            batches.wait_for(len(batches.all) + 500, query)
            poll_until(find_executor, PATIENT, "an executor at work").kill()
            batches.wait_for(len(batches.all) + 500, query)
        finally:
            stopped.set()
            producing.join()
        there = sorted(tuple(row) for row in offsets(bridge.read(topic)).collect())
        batches.wait_for(len(there), query)
    assert batches.all == there


def find_executor() -> psutil.Process | None:
    """Return the JVM that has Python workers."""
    for process in psutil.process_iter(["cmdline"]):
        if "raymq.spark_bridge.worker_daemon" in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if parent is not None and parent.name() == "java":
                    return parent
    return None


KILLED = """
    import sys, time
    from pathlib import Path
    from pyspark.sql import functions as F
    from raymq import cluster
    from raymq.spark_bridge import SparkBridge
    if __name__ == "__main__":
        namespace, address, topic, folder = sys.argv[1:]
        out, checkpoint = Path(folder) / "out", Path(folder) / "checkpoint"
        def keep(df, batch):
            # A batch that is run again takes the place of what a death left of it.
            df.write.mode("overwrite").parquet(str(out / str(batch)))
            print(batch, flush=True)
        with cluster.connect(namespace=namespace, address=address) as mq, SparkBridge(mq, memory="512m") as bridge:
            stream = bridge.stream(topic, "killed", start="earliest", max_offsets_per_batch=2_000)
            rows = stream.select("queue.broker", F.col("queue.id"), "offset", F.col("body").cast("string").alias("n"))
            writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
            query = writer.trigger(processingTime="100 milliseconds").start()
            while not (Path(folder) / "stop").exists() and query.isActive:
                time.sleep(0.1)
            if query.exception() is not None:
                raise query.exception()
            query.stop()
"""


@pytest.mark.timeout(1_200)
@pytest.mark.long
def test_driver_and_jvm_kill_causes_no_loss_or_duplicate(mq: cluster.Cluster, topic: str, tmp_path: Path) -> None:
    """Run with live producers; the sink keeps the last run of each batch."""
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    command = [sys.executable, str(script), mq.namespace, ray.get_runtime_context().gcs_address, topic, str(tmp_path)]
    sent = 0

    def batches() -> int:
        return len(list((tmp_path / "out").glob("*/_SUCCESS")))

    for kill in (True, True, False):
        done = batches()
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 2 * PATIENT
            while batches() < done + 3 and process.poll() is None and time.monotonic() < deadline:
                if sent < 2_000 * (batches() + 5):  # a slow machine must also finish
                    send(mq, topic, numbers(sent, 200))
                    sent += 200
                time.sleep(0.1)  # the producers' pace
            assert batches() >= done + 3, (tmp_path / "log").read_text()[-3_000:]
            if kill:
                continue
            expected = Counter(map(str, range(sent)))
            poll_until(lambda: read_back(tmp_path / "out") == expected, PATIENT, "every message once")  # noqa: B023
            (tmp_path / "stop").touch()
            assert process.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the JVM is in the same session
            process.wait()


def read_back(folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for batch in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # it is being written
            for path in batch.glob("*.parquet"):
                found.update(pq.read_table(path).column("n").to_pylist())
    return found
