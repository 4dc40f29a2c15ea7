"""Test that killed Spark writes and sinks store each row once, on a real cluster and a real Spark."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from tests.polling import poll_until

pytest.importorskip("raydp")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from raymq import cluster
from raymq.client import Admin, InvalidInput, Message, Producer
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.errors import OutcomeUnknown
from raymq.spark_bridge import SparkBridge, WriteResult
from raymq.storage.store import Store
from tests.integration.exactly_once import count_bodies, count_messages, describe_differences
from tests.integration.shared_spark import SharedSpark
from tests.staged_rows import open_transactions

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

#: Seconds that a batch may take on a busy machine.
PATIENT = 120.0

EachBatch = Callable[[DataFrame, int], None]


@pytest.fixture(scope="module")
def mq(shared_spark: SharedSpark) -> cluster.Cluster:
    return shared_spark.mq


@pytest.fixture(scope="module")
def bridge(shared_spark: SharedSpark) -> SparkBridge:
    return shared_spark.bridge


@pytest.fixture
def topics(mq: cluster.Cluster) -> tuple[str, str]:
    """Create a source topic and a target topic."""
    name = f"t{uuid.uuid4().hex[:10]}"
    with Admin(mq) as admin:
        for each in (name, f"{name}-out"):
            admin.create_topic(each, queues=2)
    return name, f"{name}-out"


def send(mq: cluster.Cluster, topic: str, first: int, count: int) -> None:
    with Producer(mq, group="tests", timeout=30.0) as producer:
        producer.send_batch([Message(topic, str(number).encode()) for number in range(first, first + count)])


def values(bridge: SparkBridge, topic: str) -> DataFrame:
    return bridge.stream(topic, topic, start="earliest", max_offsets_per_batch=50).select(
        F.col("body").cast("string").alias("value")
    )


def run(df: DataFrame, each_batch: EachBatch, checkpoint: Path, until: Callable[[], bool]) -> str | None:
    """Run a query until `until()` holds; return its error text if it ends."""
    writer = df.writeStream.foreachBatch(each_batch).trigger(processingTime="100 milliseconds")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        poll_until(lambda: until() or not query.isActive, PATIENT)
        if query.isActive:
            return None
        try:
            query.awaitTermination(1)
        except StreamingQueryException as error:
            return str(error)
        return "it has ended"
    finally:
        query.stop()


@pytest.mark.long
def test_batch_repeated_by_spark_is_written_once(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Fail the driver after the commit, so that Spark repeats the batch."""
    source, target = topics
    send(mq, source, 0, 120)
    sink, calls = bridge.sink(target), []

    def each(df: DataFrame, batch: int) -> None:
        sink(df, batch)
        calls.append(batch)
        if len(calls) % 2:
            raise RuntimeError("behind the commit")

    for _ in range(3):
        failure = run(values(bridge, source), each, tmp_path, lambda: len(calls) >= 7)
        assert failure is None or "behind the commit" in failure
    assert max(Counter(calls).values()) > 1, calls
    poll_until(
        lambda: not run(values(bridge, source), sink, tmp_path, lambda: count_bodies(bridge, target).total() >= 120)
    )
    assert describe_differences(Counter(map(str, range(120))), count_bodies(bridge, target)) == ""


def test_comparison_detects_double_commit_and_lost_batch(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Break the sink on purpose: two names, then a batch number that is taken."""
    source, target = topics
    send(mq, source, 0, 40)
    calls: list[int] = []

    def twice(df: DataFrame, batch: int) -> None:
        for name in ("one", "two"):
            bridge.sink(target, name=name)(df, batch)
        calls.append(batch)

    assert (
        run(values(bridge, source), twice, tmp_path / "a", lambda: count_bodies(bridge, target).total() >= 80) is None
    )
    assert describe_differences(Counter(map(str, range(40))), count_bodies(bridge, target)) == "0 lost, 40 too many"

    def taken(df: DataFrame, batch: int) -> None:
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        write = StagedWrite.open(mq, source, {"broker-a"}, series=f"{query}/{source}/", number=batch)
        assert isinstance(write, StagedWrite | CommittedWrite)
        if isinstance(write, StagedWrite):
            write.commit([])
        bridge.sink(source)(df.limit(0), batch)
        calls.append(batch)

    before = len(calls)
    assert run(values(bridge, source), taken, tmp_path / "b", lambda: len(calls) > before) is None
    assert describe_differences(Counter(map(str, range(80))), count_bodies(bridge, source)) == "40 lost, 0 too many"


def test_two_sinks_of_one_topic_need_distinct_names(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path
) -> None:
    source, target = topics
    send(mq, source, 0, 20)

    def both(names: tuple[str, str]) -> EachBatch:
        def each(df: DataFrame, batch: int) -> None:
            bridge.sink(target, name=names[0])(df, batch)
            bridge.sink(target, name=names[1])(df.selectExpr("concat('x', value) AS value"), batch)

        return each

    failure = run(values(bridge, source), both(("", "")), tmp_path / "a", lambda: False)
    assert failure is not None
    assert "name=" in failure
    before = count_bodies(bridge, target)
    everything = before + Counter(f"{mark}{n}" for mark in ("", "x") for n in range(20))
    failure = run(
        values(bridge, source),
        both(("plain", "marked")),
        tmp_path / "b",
        lambda: count_bodies(bridge, target).total() >= everything.total(),
    )
    assert failure is None
    assert describe_differences(everything, count_bodies(bridge, target)) == ""


def test_sink_outside_foreach_batch_is_refused(bridge: SparkBridge, topics: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput, match="foreachBatch"):
        bridge.sink(topics[1])(bridge.spark.createDataFrame([("x",)], "value string"), 0)
    with pytest.raises(InvalidInput, match="64"):
        bridge.sink(topics[1], name="n" * 65)
    with pytest.raises(InvalidInput):
        bridge.sink("no topic")


def test_write_with_paused_broker_is_finished_once(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: the write raised Timeout with half of the rows stored.

    All rows followed later, so that a repeated write doubled them.
    """
    _, target = topics
    frame = bridge.spark.range(2_000).selectExpr("cast(id AS string) AS value").repartition(8)
    with Admin(mq) as admin:
        pid = next(each.pid for each in admin.cluster_info().brokers if each.name == "broker-b")
    settle = StagedWrite.settle

    async def stopped(*arguments: object) -> CommittedWrite:
        os.kill(pid, signal.SIGSTOP)
        return await settle(*arguments)  # type: ignore[arg-type]

    for name, seconds in (("RETRY_TIMEOUT_SECONDS", 1.0), ("_APPEND_SECONDS", 1.0), ("_ALIVE_SECONDS", 1.0)):
        monkeypatch.setattr(staged_write, name, seconds)
    monkeypatch.setattr(StagedWrite, "settle", stopped)
    try:
        with pytest.raises(OutcomeUnknown, match="do not repeat") as caught:
            bridge.write(frame, target, "value")
    finally:
        os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.committed
    assert bridge.finish_write(error.transaction) == WriteResult(2_000, error.transaction)
    with pytest.raises(InvalidInput, match="not committed"):
        bridge.abort_write(error.transaction)
    assert describe_differences(Counter(map(str, range(2_000))), count_bodies(bridge, target)) == ""


def test_staged_rows_of_failed_write_are_deleted(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    _, target = topics
    broken = bridge.spark.range(1_000).selectExpr("IF(id = 999, raise_error('no'), cast(id AS string)) AS value")
    with pytest.raises(Exception, match="no"):
        bridge.write(broken.repartition(4), target, "value")
    directories = [path.parent.parent for path in tmp_path_factory.getbasetemp().rglob("raymq/state")]
    assert directories

    def undecided() -> set[str]:
        found = set[str]()
        for directory in directories:
            with Store.open(directory, read_only=True) as store:
                found |= open_transactions(store)
        return found

    poll_until(lambda: not undecided(), 30)
    assert count_bodies(bridge, target) == Counter()


KILLED = """
    import sys, time
    from pathlib import Path
    from pyspark.sql import functions as F
    from raymq import cluster
    from raymq.spark_bridge import SparkBridge
    if __name__ == "__main__":
        namespace, address, source, target, folder = sys.argv[1:]
        with cluster.connect(namespace=namespace, address=address) as mq, SparkBridge(mq, memory="512m") as bridge:
            sink = bridge.sink(target)
            def each(df, batch):
                sink(df, batch)
                with (Path(folder) / "batches").open("a") as file:
                    file.write(f"{batch}\\n")
            stream = bridge.stream(source, "killed", start="earliest", max_offsets_per_batch=1_000)
            rows = stream.select(F.col("body").cast("string").alias("value"))
            writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(Path(folder) / "checkpoint"))
            query = writer.trigger(processingTime="50 milliseconds").start()
            while not (Path(folder) / "stop").exists() and query.isActive:
                time.sleep(0.1)
            if query.exception() is not None:
                raise query.exception()
            query.stop()
"""


@pytest.mark.timeout(900)
@pytest.mark.long
def test_topic_to_topic_copy_stays_exact_under_kills(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Kill driver, JVM and a broker under live producers; each message arrives once."""
    source, target = topics
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, str(script), mq.namespace, address, source, target, str(tmp_path)]
    sent, killed = 0, list[int]()

    def batches() -> int:
        path = tmp_path / "batches"
        return len(path.read_text().splitlines()) if path.exists() else 0

    for life in ("killed", "killed beside a broker", "killed", "to the end"):
        done = batches()
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 200
            while batches() < done + 4 and process.poll() is None and time.monotonic() < deadline:
                if sent < 1_000 * (batches() + 5):  # a slow machine must also finish
                    send(mq, source, sent, 100)
                    sent += 100
                time.sleep(0.1)  # the producers' pace
                if life == "killed beside a broker" and not killed and batches() >= done + 2:
                    with Admin(mq) as admin:
                        killed = [each.pid for each in admin.cluster_info().brokers if each.name == "broker-b"]
                    os.kill(killed[0], signal.SIGKILL)
            assert batches() >= done + 4, (tmp_path / "log").read_text()[-3_000:]
            if life != "to the end":
                continue
            poll_until(lambda: count_messages(mq, target) >= sent, PATIENT, "every message")  # noqa: B023
            (tmp_path / "stop").touch()
            assert process.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the JVM is in the same session
            process.wait()
    assert describe_differences(Counter(map(str, range(sent))), count_bodies(bridge, target)) == ""
