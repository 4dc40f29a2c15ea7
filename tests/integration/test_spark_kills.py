"""Test that writes, reads and sinks stay exact when executors, Python workers or a node are killed.

The tests use a real cluster and a real Spark with speculation and two executors: one on the machine's Ray node, one on
an added node, since Spark starts a task's second attempt only on another host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import ray

from tests.polling import poll_until
from tests.ray_cluster import own_cluster

pytest.importorskip("raydp")

from pyspark.sql import DataFrame

from raymq import cluster
from raymq.actors.java import java_environment
from raymq.client import Admin, Message, Producer
from raymq.client.bulk.staged_write import StagedWrite
from raymq.spark_bridge import SparkBridge, session, writer
from raymq.spark_bridge.session_settings import MASTER_RESOURCE, spark_settings
from raymq.spark_bridge.spark_placement import Placement, _add_node
from tests.integration.exactly_once import count_bodies, count_messages, describe_differences
from tests.integration.streamed import PATIENT, running_query

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

CONFIG = {"commitlog_file_bytes": 64 << 20, "index_slots": 100_000, "index_entries": 400_000}
MIB = 1 << 20
#: Room for one executor of 512 MiB and not for two: a killed executor restarts on the same node.
ONE_EXECUTOR = 800 * MIB
#: Speculative attempts start soon; a superseded Python task runs on, as on a machine that lost its network.
SETTINGS = {
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.python.task.killTimeout": "120s",
}
ROWS = 6_000


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Cluster]:
    with own_cluster(tmp_path_factory, "kills", CONFIG) as running_query:
        yield running_query


@pytest.fixture(scope="module")
def far(mq: cluster.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placement]:
    """Add a Ray node with its own address, own processes and room for one executor."""
    node = _add_node(java_environment(), ONE_EXECUTOR, tmp_path_factory.mktemp("far"), PATIENT)
    try:
        yield node
    finally:
        node.close()


class Ballast:
    """Reserve memory of a node in Ray's accounting."""

    def ready(self) -> None:
        """Return once the memory is reserved."""


class NearNode:
    """Control the Ray node of this process: while filled, it has room for one executor."""

    def __init__(self) -> None:
        own = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == own)
        self.address: str = node["NodeManagerAddress"]
        self.resources = {f"node:{self.address}": 0.001}
        self._ballast: Any = ray.remote(
            num_cpus=0, memory=int(node["Resources"]["memory"]) - ONE_EXECUTOR, resources=self.resources
        )(Ballast)

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        self._fill()
        try:
            yield
        finally:
            ray.kill(self._actor)

    @contextlib.contextmanager
    def emptied(self) -> Iterator[None]:
        """Free the node's memory for work that needs more than two executors."""
        ray.kill(self._actor)
        try:
            yield
        finally:
            self._fill()

    def _fill(self) -> None:
        self._actor = self._ballast.remote()
        ray.get(self._actor.ready.remote(), timeout=PATIENT)


@pytest.fixture(scope="module")
def near(mq: cluster.Cluster) -> Iterator[NearNode]:
    node = NearNode()
    with node.filled():
        yield node


@pytest.fixture(scope="module")
def bridge(mq: cluster.Cluster, near: NearNode, far: Placement) -> Iterator[SparkBridge]:
    with pytest.MonkeyPatch.context() as patch:
        masters = {f"{MASTER_RESOURCE}{name}": str(amount) for name, amount in near.resources.items()}
        patch.setattr(session, "spark_settings", lambda **given: spark_settings(**given) | masters)
        with SparkBridge(mq, executors=2, memory="512m", settings=SETTINGS) as running_query:
            yield running_query


@pytest.fixture
def both(bridge: SparkBridge, near: NearNode) -> SparkBridge:
    """Return the bridge once each of the two hosts has an executor again."""
    tracker = bridge.spark.sparkContext._jsc.sc().statusTracker()  # type: ignore[attr-defined]

    def hosts() -> Counter[str]:
        return Counter(str(each.host()) for each in tracker.getExecutorInfos())

    # The list includes the driver.
    poll_until(lambda: sorted(hosts().values()) == [1, 2] and hosts()[near.address] == 2, PATIENT, "executors on both")
    return bridge


@pytest.fixture
def topics(mq: cluster.Cluster) -> tuple[str, str]:
    """Create a source topic and a target topic."""
    name = f"t{uuid.uuid4().hex[:10]}"
    with Admin(mq) as admin:
        for each in (name, f"{name}-out"):
            admin.create_topic(each, queues=2)
    return name, f"{name}-out"


def numbers(count: int = ROWS, first: int = 0) -> Counter[str]:
    """Return bodies that are long enough for several chunks per task."""
    return Counter(body(number) for number in range(first, first + count))


def body(number: int) -> str:
    return f"{number} ".ljust(1_000, "x")


def frame(bridge: SparkBridge, count: int = ROWS, partitions: int = 2) -> DataFrame:
    return bridge.spark.range(0, count, 1, partitions).selectExpr("rpad(concat(id, ' '), 1000, 'x') AS value")


def send(mq: cluster.Cluster, topic: str, count: int, first: int = 0) -> None:
    with Producer(mq, group="tests", timeout=30.0) as producer:
        producer.send_batch([Message(topic, body(number).encode()) for number in range(first, first + count)])


def make_killer(folder: Path, victim: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes rows on and kills `victim` once.

    It kills after most of a partition, when the next stage has staged some rows. `victim` is "the executor" (its
    JVM) or "its Python workers" (all processes that its daemon has forked).
    """

    def passes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal
        import time
        from pathlib import Path

        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if passed < 2_000:
                continue
            with contextlib.suppress(FileExistsError):
                (folder / "killed").touch(exist_ok=False)
                daemon = os.getppid()
                with open(f"/proc/{daemon}/status") as status:
                    jvm = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
                if victim == "the executor":
                    os.kill(jvm, signal.SIGKILL)
                    time.sleep(60)  # until Spark's daemon, whose JVM is gone, ends this process
                workers = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
                for worker in sorted(map(int, workers), key=lambda pid: pid == os.getpid()):
                    os.kill(worker, signal.SIGKILL)

    return passes


VICTIMS = ["the executor", "its Python workers"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_read_and_write_stay_exact_when_executor_is_killed(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path, victim: str
) -> None:
    source, target = topics
    send(mq, source, ROWS)
    read = bridge.read(source, columns=["body"])
    rows = read.mapInArrow(make_killer(tmp_path, victim), read.schema)
    assert bridge.write(rows, target, "body").rows == ROWS
    assert (tmp_path / "killed").exists()
    assert describe_differences(numbers(), count_bodies(bridge, target)) == ""


@pytest.mark.parametrize("victim", VICTIMS)
def test_sink_stays_exact_when_executor_is_killed(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path, victim: str
) -> None:
    source, target = topics
    stream = bridge.stream(source, source, start="earliest", columns=["body"])
    rows = stream.mapInArrow(make_killer(tmp_path, victim), stream.schema)
    writer = rows.writeStream.foreachBatch(bridge.sink(target, "body")).trigger(processingTime="200 milliseconds")
    with running_query(writer, tmp_path / "checkpoint") as query:
        send(mq, source, ROWS)
        poll_until(lambda: (tmp_path / "killed").exists(), PATIENT)
        send(mq, source, 100, first=ROWS)
        poll_until(lambda: count_messages(mq, target) >= ROWS + 100 or query.exception(), PATIENT)
        assert query.exception() is None
    assert describe_differences(numbers(ROWS + 100), count_bodies(bridge, target)) == ""


def stage_overtaken(folder: Path, real: Any) -> Any:
    """Stage like `real`, but stop partition 0's first attempt until the file "decided" exists.

    The other attempts wait until it has begun, since a starting worker may be overtaken earlier. It reads all its rows
    first, so that the end of its task does not keep it from staging the rest. The file "late" gets its outcome.
    """

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None or context.partitionId() or context.attemptNumber():
            while not (folder / "half").exists():
                time.sleep(0.05)
            yield from real(batches)
            return
        rows = list(batches)

        def slowly() -> Iterator[pa.RecordBatch]:
            yield from rows[: len(rows) // 2]
            (folder / "half").touch()
            while not (folder / "decided").exists():
                time.sleep(0.05)  # keeps the task slow
            yield from rows[len(rows) // 2 :]

        try:
            staged = list(real(slowly()))
        except Exception as error:
            (folder / "late.part").write_text(f"{type(error).__name__}: {error}")
            (folder / "late.part").rename(folder / "late")
            raise
        (folder / "late").write_text("staged")
        yield from staged

    return stage


def test_superseded_attempt_stages_nothing_after_commit(
    both: SparkBridge, topics: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: such an attempt staged chunks again in a committed transaction."""
    (_, target), bridge = topics, both
    real = writer.StageRows
    monkeypatch.setattr(writer, "StageRows", lambda *given, **more: stage_overtaken(tmp_path, real(*given, **more)))
    result = bridge.write(frame(bridge, partitions=4), target, "value")
    assert result.rows == ROWS
    assert (tmp_path / "half").exists()
    assert not (tmp_path / "late").exists(), "the write did not wait for it"
    (tmp_path / "decided").touch()
    poll_until(lambda: (tmp_path / "late").exists(), PATIENT)
    late = (tmp_path / "late").read_text()
    assert late.startswith("InvalidInput")
    assert "decided" in late
    assert describe_differences(numbers(), count_bodies(bridge, target)) == ""
    assert bridge.finish_write(result.transaction) == result


def test_comparison_detects_doubled_and_missing_parts(
    mq: cluster.Cluster,
    bridge: SparkBridge,
    topics: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check this file's own comparison: make the driver commit wrong parts."""
    doubled, robbed = topics
    commit = StagedWrite.commit
    both = frame(bridge, partitions=2)

    def twice(self: StagedWrite, parts: Any) -> Any:
        """Commit also the parts of a second run, as if two attempts had won."""
        stage = writer.StageRows(
            tuple(mq.name_servers), self.transaction, tuple(writer.writable_queues(mq, doubled, keyed=False)),
            ("body",), mq.tls, coordinator=self.coordinator,
        )  # fmt: skip
        again = both.withColumnRenamed("value", "body").mapInArrow(stage, "part string, broker string, rows long")
        return commit(self, [*parts, *map(tuple, again.where("part LIKE '1-%'").collect())])

    monkeypatch.setattr(StagedWrite, "commit", twice)
    bridge.write(both, doubled, "value")
    assert describe_differences(numbers(), count_bodies(bridge, doubled)) == f"0 lost, {ROWS // 2} too many"
    monkeypatch.setattr(
        StagedWrite, "commit", lambda self, parts: commit(self, [part for part in parts if part[0].startswith("1-")])
    )
    bridge.write(both, robbed, "value")
    assert describe_differences(numbers(), count_bodies(bridge, robbed)) == f"{ROWS // 2} lost, 0 too many"


SECOND = """
    import sys, time
    from pathlib import Path
    from raymq import cluster
    from raymq.spark_bridge import SparkBridge
    if __name__ == "__main__":
        namespace, address, topic, folder, lot = sys.argv[1:]
        folder, lot = Path(folder), int(lot)
        with cluster.connect(namespace=namespace, address=address) as mq, SparkBridge(mq, memory="512m") as bridge:
            (folder / "ready").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)
            for first in range(0, 4 * lot, lot):
                rows = bridge.spark.range(first, first + lot, 1, 2).selectExpr("concat('second ', id) AS value")
                assert bridge.write(rows, topic, "value").rows == lot
                seen = bridge.read(topic, columns=["body"]).where("cast(body AS string) LIKE 'second%'").count()
                assert seen == first + lot, seen
"""


def test_bridges_in_two_processes_share_topic_concurrently(
    mq: cluster.Cluster, bridge: SparkBridge, near: NearNode, topics: tuple[str, str], tmp_path: Path
) -> None:
    with near.emptied():
        write_from_two(mq, bridge, topics[0], tmp_path)


def write_from_two(mq: cluster.Cluster, bridge: SparkBridge, topic: str, tmp_path: Path) -> None:
    lot = 1_000
    script = tmp_path / "second.py"
    script.write_text(textwrap.dedent(SECOND))
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, str(script), mq.namespace, address, topic, str(tmp_path), str(lot)]
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        poll_until(lambda: (tmp_path / "ready").exists() or process.poll() is not None, PATIENT)
        (tmp_path / "go").touch()
        written = 0
        while process.poll() is None or written < 2 * lot:
            rows = bridge.spark.range(written, written + lot, 1, 2).selectExpr("concat('first ', id) AS value")
            assert bridge.write(rows, topic, "value").rows == lot
            written += lot
            found = Counter(each.split()[0] for each in count_bodies(bridge, topic).elements())
            assert found["first"] == written
        assert process.wait(60) == 0, (tmp_path / "log").read_text()[-3_000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    everything = Counter(f"{who} {n}" for who, count in (("first", written), ("second", 4 * lot)) for n in range(count))
    assert describe_differences(everything, count_bodies(bridge, topic)) == ""


def test_write_stays_exact_when_node_is_lost(
    both: SparkBridge, far: Placement, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Kill a node's raylet, executor and Python workers at once; last test of this file."""
    (source, target), bridge = topics, both
    assert far.process is not None

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stop every partition in its middle until the node is lost."""
        import time
        import uuid

        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if passed == 2_000 and not (tmp_path / "lost").exists():
                (tmp_path / f"at-{uuid.uuid4().hex}").touch()
                while not (tmp_path / "lost").exists():
                    time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(bridge.write, frame(bridge).mapInArrow(waits, "value string"), target, "value")
        poll_until(lambda: len(list(tmp_path.glob("at-*"))) >= 2 or writing.done(), PATIENT, "both executors at work")
        kill_node(far)
        (tmp_path / "lost").touch()
        assert writing.result(PATIENT).rows == ROWS
    assert describe_differences(numbers(), count_bodies(bridge, target)) == ""
    assert bridge.write(frame(bridge), source, "value").rows == ROWS
    assert describe_differences(numbers(), count_bodies(bridge, source)) == ""


def kill_node(node: Placement) -> None:
    """Kill all processes of a node at once, so that it stops answering."""
    assert node.process is not None
    top = psutil.Process(node.process.pid)
    found = [top, *top.children(recursive=True)]
    names = {process.name() for process in found}
    assert {"raylet", "java"} <= names, names
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
