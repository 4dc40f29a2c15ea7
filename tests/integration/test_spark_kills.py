"""Writes, reads and sinks of which executors, Python workers and a node are killed, and attempts are overtaken.

A real cluster, a real Spark with speculation and two executors: one on the machine's Ray node, one on another that is
added to it, since Spark gives a task's second attempt to another host only.
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
from tests.integration.exactly_once import content, differences, stored
from tests.integration.streamed import PATIENT, running

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

CONFIG = {"commitlog_file_bytes": 64 << 20, "index_slots": 100_000, "index_entries": 400_000}
MIB = 1 << 20
#: Room for one executor of 512 MiB and not for two: an executor that is killed comes back where it was.
ONE_EXECUTOR = 800 * MIB
#: Attempts are overtaken by others soon; and what runs in Python goes on, as on a machine that lost its network.
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
    with own_cluster(tmp_path_factory, "kills", CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def far(mq: cluster.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placement]:
    """Another node of Ray, with room for one executor. It has an address of its own, and processes of its own."""
    node = _add_node(java_environment(), ONE_EXECUTOR, tmp_path_factory.mktemp("far"), PATIENT)
    try:
        yield node
    finally:
        node.close()


class Ballast:
    """Takes memory of a node, as Ray counts it."""

    def ready(self) -> None:
        """Return when it does."""


class NearNode:
    """The Ray node of this process. While it is filled it has room for one executor, as the other one has."""

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
        """For what needs more than the two executors."""
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
        with SparkBridge(mq, executors=2, memory="512m", settings=SETTINGS) as running:
            yield running


@pytest.fixture
def both(bridge: SparkBridge, near: NearNode) -> SparkBridge:
    """With an executor on each of the two hosts: one that was killed has come back."""
    tracker = bridge.spark.sparkContext._jsc.sc().statusTracker()  # type: ignore[attr-defined]

    def hosts() -> Counter[str]:
        return Counter(str(each.host()) for each in tracker.getExecutorInfos())

    # The driver is told among them.
    poll_until(lambda: sorted(hosts().values()) == [1, 2] and hosts()[near.address] == 2, PATIENT, "executors on both")
    return bridge


@pytest.fixture
def topics(mq: cluster.Cluster) -> tuple[str, str]:
    """One that is read, and one that is written."""
    name = f"t{uuid.uuid4().hex[:10]}"
    with Admin(mq) as admin:
        for each in (name, f"{name}-out"):
            admin.create_topic(each, queues=2)
    return name, f"{name}-out"


def numbers(count: int = ROWS, first: int = 0) -> Counter[str]:
    """Bodies that are long enough for several chunks a task."""
    return Counter(body(number) for number in range(first, first + count))


def body(number: int) -> str:
    return f"{number} ".ljust(1_000, "x")


def frame(bridge: SparkBridge, count: int = ROWS, partitions: int = 2) -> DataFrame:
    return bridge.spark.range(0, count, 1, partitions).selectExpr("rpad(concat(id, ' '), 1000, 'x') AS value")


def send(mq: cluster.Cluster, topic: str, count: int, first: int = 0) -> None:
    with Producer(mq, group="tests", timeout=30.0) as producer:
        producer.send_batch([Message(topic, body(number).encode()) for number in range(first, first + count)])


def killer(folder: Path, victim: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes rows on, and kills once when it has passed most of a partition: what comes behind it has staged some.

    `victim` is "the executor" (its JVM) or "its Python workers" (all that its daemon has forked).
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
                    time.sleep(60)  # until Spark's daemon, which has lost its JVM, ends us
                workers = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
                for worker in sorted(map(int, workers), key=lambda pid: pid == os.getpid()):
                    os.kill(worker, signal.SIGKILL)

    return passes


VICTIMS = ["the executor", "its Python workers"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_read_and_a_write_are_exact_though_it_is_killed_in_the_middle(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path, victim: str
) -> None:
    source, target = topics
    send(mq, source, ROWS)
    read = bridge.read(source, columns=["body"])
    rows = read.mapInArrow(killer(tmp_path, victim), read.schema)
    assert bridge.write(rows, target, "body").rows == ROWS
    assert (tmp_path / "killed").exists()
    assert differences(numbers(), content(bridge, target)) == ""


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_sink_is_exact_though_it_is_killed_while_a_batch_is_written(
    mq: cluster.Cluster, bridge: SparkBridge, topics: tuple[str, str], tmp_path: Path, victim: str
) -> None:
    source, target = topics
    stream = bridge.stream(source, source, start="earliest", columns=["body"])
    rows = stream.mapInArrow(killer(tmp_path, victim), stream.schema)
    writer = rows.writeStream.foreachBatch(bridge.sink(target, "body")).trigger(processingTime="200 milliseconds")
    with running(writer, tmp_path / "checkpoint") as query:
        send(mq, source, ROWS)
        poll_until(lambda: (tmp_path / "killed").exists(), PATIENT)
        send(mq, source, 100, first=ROWS)
        poll_until(lambda: stored(mq, target) >= ROWS + 100 or query.exception(), PATIENT)
        assert query.exception() is None
    assert differences(numbers(ROWS + 100), content(bridge, target)) == ""


def overtaken(folder: Path, real: Any) -> Any:
    """Stages as `real` does, but the first attempt at partition 0 stops in the middle until there is a file "decided".

    The others wait until it has begun, since a worker that has to start may be overtaken before. It has its rows by
    then, so that nobody who ends its task keeps it from staging the rest: the file "late" has what it is told.
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
                time.sleep(0.05)  # the task is as slow as that
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


def test_an_attempt_that_is_overtaken_leaves_nothing_and_stages_nothing_after_the_decision(
    both: SparkBridge, topics: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made its chunks anew in a transaction that was committed."""
    (_, target), bridge = topics, both
    real = writer.StageRows
    monkeypatch.setattr(writer, "StageRows", lambda *given, **more: overtaken(tmp_path, real(*given, **more)))
    result = bridge.write(frame(bridge, partitions=4), target, "value")
    assert result.rows == ROWS
    assert (tmp_path / "half").exists()
    assert not (tmp_path / "late").exists(), "the write did not wait for it"
    (tmp_path / "decided").touch()
    poll_until(lambda: (tmp_path / "late").exists(), PATIENT)
    late = (tmp_path / "late").read_text()
    assert late.startswith("InvalidInput")
    assert "decided" in late
    assert differences(numbers(), content(bridge, target)) == ""
    assert bridge.finish_write(result.transaction) == result


def test_a_part_that_is_committed_beside_another_attempt_s_and_one_that_is_left_out_would_be_noticed(
    mq: cluster.Cluster,
    bridge: SparkBridge,
    topics: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the tests of this file look with, where the driver is made to commit what it should not."""
    doubled, robbed = topics
    commit = StagedWrite.commit
    both = frame(bridge, partitions=2)

    def twice(self: StagedWrite, parts: Any) -> Any:
        """With the parts of a second run of the same tasks, as if two attempts had won."""
        stage = writer.StageRows(
            tuple(mq.name_servers), self.transaction, tuple(writer.writable_queues(mq, doubled, keyed=False)),
            ("body",), mq.tls, home=self.home,
        )  # fmt: skip
        again = both.withColumnRenamed("value", "body").mapInArrow(stage, "part string, broker string, rows long")
        return commit(self, [*parts, *map(tuple, again.where("part LIKE '1-%'").collect())])

    monkeypatch.setattr(StagedWrite, "commit", twice)
    bridge.write(both, doubled, "value")
    assert differences(numbers(), content(bridge, doubled)) == f"0 lost, {ROWS // 2} too many"
    monkeypatch.setattr(
        StagedWrite, "commit", lambda self, parts: commit(self, [part for part in parts if part[0].startswith("1-")])
    )
    bridge.write(both, robbed, "value")
    assert differences(numbers(), content(bridge, robbed)) == f"{ROWS // 2} lost, 0 too many"


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


def test_two_bridges_in_two_processes_write_and_read_one_topic_at_the_same_time(
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
            found = Counter(each.split()[0] for each in content(bridge, topic).elements())
            assert found["first"] == written
        assert process.wait(60) == 0, (tmp_path / "log").read_text()[-3_000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    everything = Counter(f"{who} {n}" for who, count in (("first", written), ("second", 4 * lot)) for n in range(count))
    assert differences(everything, content(bridge, topic)) == ""


def test_a_write_is_exact_though_the_node_of_an_executor_is_lost_in_the_middle(
    both: SparkBridge, far: Placement, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Its raylet, the executor and the executor's Python workers are killed at once. Last in this file."""
    (source, target), bridge = topics, both
    assert far.process is not None

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Every partition stops in its middle until the node is lost."""
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
        lose(far)
        (tmp_path / "lost").touch()
        assert writing.result(PATIENT).rows == ROWS
    assert differences(numbers(), content(bridge, target)) == ""
    assert bridge.write(frame(bridge), source, "value").rows == ROWS
    assert differences(numbers(), content(bridge, source)) == ""


def lose(node: Placement) -> None:
    """Kill all that runs on a node at once, which stops to answer with that."""
    assert node.process is not None
    top = psutil.Process(node.process.pid)
    found = [top, *top.children(recursive=True)]
    names = {process.name() for process in found}
    assert {"raylet", "java"} <= names, names
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
