"""Spark on topics, beside RayDP's exchange with Ray, Spark's own source and sink of Kafka, and Parquet files.

Run by `make bench-spark`. Prints a table, with --json a JSON value; --quick moves a tenth of the rows, --only leaves
out the rest. Compare ratios, not times: the machine is shared. What others need is fetched once, into build/bench.

- exchange: a million rows of 1 KiB and five million of 100 B leave Spark and come back: through a topic
  (`bridge.write`, `bridge.read`), through Ray's object store (`bridge.to_refs`, `bridge.from_refs`), and by each of the
  others. The sides take turns; the fastest of --rounds counts. Processor seconds are those of all processes of this
  program, servers included. RayDP runs in a session of its own with the same settings.
- memory: the largest Python worker and the executor's JVM while a fifth of a topic is read, and while all of it is.
- stream: a producer sends 1,000 messages of 100 B a second, one by one; a query whose trigger is "as fast as it can"
  hands each batch to a function on the driver. The latency of a message is from before its send to when that function
  has it. What a batch takes is what Spark says of it. Beside it the same with Kafka, and a query of rows that Spark
  itself makes, as many a batch, through a function in Python that hands them on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from raymq import cluster
from raymq.client import Admin, Message, Producer
from raymq.cluster import ray_runtime
from raymq.spark_bridge import SparkBridge
from tests.bench.command_program import CommandProgram
from tests.bench.exchange import CORES, MEMORY, SIZES, STORE_BYTES, look
from tests.bench.foreign import ROOT, interpreter, kafka_jars, reason, spark_kafka_jars
from tests.bench.spark_costs import Costs, PeakMemory, costs
from tests.bench.spark_sides import QUEUES, Bodies, Kafka, Parquet, RayDP, Refs, RowsAlone, Side, Topics, topic_of

PER_SECOND = 1_000
BODY_BYTES = 100
WARM_SECONDS = 15.0
SECONDS = 30.0
#: The parts of a batch that Spark times, in the order in which they come.
PARTS_OF_A_BATCH = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
PACED = "paced"
#: What is compared, and how much faster it should be: a side, another one, the ratio.
GOALS = (("topic", "Kafka", 1.5), ("topic", "RayDP", 2.0), ("body", "RayDP", 2.0), ("refs", "RayDP", 2.0))

_WAYS = {"out": "out of Spark", "back": "back into Spark"}
_SENT = struct.Struct(">d")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all parts work with. `kafka` and `raydp` are None where they cannot be had."""

    mq: cluster.Cluster
    bridge: SparkBridge
    folder: Path
    sizes: Sequence[tuple[int, int]]
    rounds: int
    kafka: CommandProgram | None
    raydp: CommandProgram | None
    seconds: float


# Rows out of Spark and back


def exchange(setting: Setting) -> Iterator[Row]:
    """All sides by turns, each size for itself; and at the end of a size how far the goals are reached."""
    sides = _sides(setting)
    for rows, size in setting.sizes:
        taken: dict[tuple[str, str], list[Costs]] = {}
        for turn in range(setting.rounds + 1):
            # The first turn warms up, with a tenth of the rows.
            count = rows if turn else rows // 10
            for direction in ("out", "back"):
                for side in [side for side in sides if direction in side.ways]:
                    try:
                        cost = costs(lambda side=side: getattr(side, direction)(count, size, turn))  # noqa: B023
                    except ChildProcessError as error:  # RayDP has ended
                        sides.remove(side)
                        yield {"what": f"{side.name}, {direction}, {count:,} x {size} B", "failed": str(error)}
                        continue
                    said = f"{_WAYS[direction]}, {count:,} x {size} B, {side.name}: {cost.seconds:.1f} s"
                    print(said, file=sys.stderr, flush=True)
                    if turn:
                        taken.setdefault((direction, side.name), []).append(cost)
            for side in sides:
                side.over(count, size, turn)
        yield from (_row(direction, rows, size, taken) for direction in ("out", "back"))
        yield memory(setting, rows, size, setting.rounds)


def _sides(setting: Setting) -> list[Side]:
    spark = setting.bridge.spark
    sides: list[Side] = [Topics(setting.mq, setting.bridge), Bodies(setting.bridge)]
    if setting.kafka is not None:
        sides.append(Kafka(spark, setting.kafka.ready))
    sides += [RowsAlone(spark), Parquet(spark, setting.folder), Refs(setting.bridge)]
    if setting.raydp is not None:
        sides.append(RayDP(setting.raydp))
    return sides


def _row(direction: str, rows: int, size: int, taken: Mapping[tuple[str, str], list[Costs]]) -> Row:
    best = {side: min(each, key=lambda cost: cost.seconds) for (way, side), each in taken.items() if way == direction}
    row: Row = {"what": f"{_WAYS[direction]}, {rows:,} x {size} B"}
    for side, cost in best.items():
        rate = rows * size / 1e6 / cost.seconds
        whose = ", ".join(f"{kind} {spent:.1f}" for kind, spent in sorted(cost.by_kind.items()) if spent >= 0.1)
        row[side] = f"{cost.seconds:.2f} s, {rate:.0f} MB/s; CPU {cost.cpu_seconds:.1f} s: {whose}"
    for side, other, goal in GOALS:
        if side in best and other in best:
            ratio = best[other].seconds / best[side].seconds
            cpu = best[other].cpu_seconds / max(0.01, best[side].cpu_seconds)
            row[f"{side} / {other}"] = f"{ratio:.2f} (CPU {cpu:.2f}), goal {goal}{'' if ratio >= goal else ': missed'}"
    return row


def memory(setting: Setting, rows: int, size: int, turn: int) -> Row:
    """The memory of who reads, which is that of a part of it, however much there is."""
    topic = topic_of(rows, size, turn)
    with Admin(setting.mq) as admin:
        ends = {queue: each.max_offset for queue, each in admin.topic_stats(topic).items()}
    row: Row = {"what": f"memory while reading, {rows:,} x {size} B"}
    for name, part in (("a fifth", 5), ("all", 1)):
        upto = {queue: end // part for queue, end in ends.items()}
        df = setting.bridge.read(topic, start=dict.fromkeys(ends, 0), end=upto)
        with PeakMemory(None if setting.raydp is None else setting.raydp.pid) as peak:
            look(df, "body", sum(upto.values()), size)
        row[name] = f"largest worker {peak.worker} MiB, executor's JVM {peak.executor} MiB"
    return row


# A stream


class Pace:
    """Sends at a steady pace on a thread of its own, until it is closed."""

    def __init__(self, mq: cluster.Cluster, topic: str) -> None:
        self.sent = 0
        self._mq = mq
        self._topic = topic
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        filler = bytes(BODY_BYTES - _SENT.size)
        with Producer(self._mq, "bench", linger=0.002) as producer:
            due = time.monotonic()
            while not self._closed.is_set():
                producer.send_async(Message(self._topic, _SENT.pack(time.time()) + filler))
                self.sent += 1
                due += 1 / PER_SECOND
                time.sleep(max(0.0, due - time.monotonic()))


class Latencies:
    """What foreachBatch calls: keeps the latency of each message from when it is told to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rows: list[int] = []
        self.keeps = False

    def __call__(self, df: DataFrame, _: int) -> None:
        rows = df.collect()
        now = time.time()
        if self.keeps and rows:
            self.seconds += [now - _SENT.unpack_from(row[0])[0] for row in rows]
            self.rows.append(len(rows))


def stream(setting: Setting) -> Iterator[Row]:
    """The latency of messages and batches at a steady pace: Kafka's first, ours, and what Spark takes by itself."""
    seconds = WARM_SECONDS + setting.seconds
    if setting.kafka is not None:
        kafka, reader = setting.kafka, setting.bridge.spark.readStream.format("kafka")
        df = reader.option("kafka.bootstrap.servers", kafka.ready).option("subscribe", PACED).load().select("value")
        kafka.tell(f"{PACED} {seconds + 2} {PER_SECOND} {BODY_BYTES}")
        yield _paced(setting, df, "Kafka")
        kafka.answer()
    with Admin(setting.mq) as admin:
        admin.create_topic(PACED, queues=QUEUES)
    df = setting.bridge.stream(PACED, "bench").select("body")
    pace = Pace(setting.mq, PACED)
    try:
        own = _paced(setting, df, "topic")
    finally:
        pace.close()
    yield own
    yield {"what": "stream, baseline: Spark's own rows", "batch_ms": baseline(setting, int(own["rows_median"]))}


def _paced(setting: Setting, df: DataFrame, name: str) -> Row:
    latencies = Latencies()
    writer = df.writeStream.foreachBatch(latencies).option("checkpointLocation", str(setting.folder / f"of-{name}"))
    query = writer.start()
    try:
        time.sleep(WARM_SECONDS)
        latencies.keeps = True
        time.sleep(setting.seconds)
        latencies.keeps = False
        batches = parts_of(query, len(latencies.rows))
    finally:
        query.stop()
    seconds = sorted(latencies.seconds)
    return {
        "what": f"stream, {name}, {PER_SECOND} messages a second",
        "messages": len(seconds),
        "batches": len(latencies.rows),
        "rows_median": statistics.median(latencies.rows),
        "latency_p50_ms": round(1_000 * seconds[len(seconds) // 2]),
        "latency_p99_ms": round(1_000 * seconds[len(seconds) * 99 // 100]),
        "latency_max_ms": round(1_000 * seconds[-1]),
        "batch_ms": batches,
    }


def baseline(setting: Setting, rows: int) -> Row:
    """What a batch of so many rows takes that no broker is asked for."""
    source = setting.bridge.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    own = source.option("numPartitions", CORES).load().select("value")
    handed_on = own.mapInArrow(lambda batches: batches, "value LONG")
    writer = handed_on.writeStream.foreachBatch(lambda df, _: df.collect())
    query = writer.option("checkpointLocation", str(setting.folder / "baseline")).start()
    try:
        time.sleep(WARM_SECONDS / 3)
        warm = query.lastProgress["batchId"]
        time.sleep(setting.seconds / 3)
        return parts_of(query, query.lastProgress["batchId"] - warm)
    finally:
        query.stop()


def parts_of(query: StreamingQuery, count: int) -> Row:
    """The median of what each part took in the last batches."""
    batches = [each["durationMs"] for each in query.recentProgress][-count:]
    return {name: statistics.median(each.get(name, 0) for each in batches) for name in PARTS_OF_A_BATCH}


PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {"exchange": exchange, "stream": stream}


# The programs beside this one


def _kafka(folder: Path, topics: Sequence[str], stack: contextlib.ExitStack) -> CommandProgram:
    """A Kafka node; the session finds the jars of Spark's source from now on."""
    command = [interpreter(), str(Path(__file__).with_name("kafka_for_spark.py")), kafka_jars(), str(2 * QUEUES)]
    jars = ",".join(str(jar) for jar in Path(spark_kafka_jars()).glob("*.jar"))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    return stack.enter_context(CommandProgram([*command, *topics], ROOT, folder / "kafka.log"))


def _raydp(folder: Path, stack: contextlib.ExitStack) -> CommandProgram:
    (folder / "raydp").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    command = [sys.executable, "-m", "tests.bench.raydp_exchange", str(folder / "raydp")]
    return stack.enter_context(CommandProgram(command, ROOT, folder / "raydp.log", environment))


def run(parts: Sequence[str], sizes: Sequence[tuple[int, int]], rounds: int, seconds: float) -> Iterator[Row]:
    """All rows of these parts, each when it is known."""
    topics = [topic_of(count, size, turn) for rows_of, size in sizes for turn, count in _turns(rows_of, rounds)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raymq-bench-")))
        kafka = raydp = None
        try:
            kafka = _kafka(folder, [PACED, *topics], stack)
        except (OSError, subprocess.SubprocessError) as error:
            yield {"what": "Kafka", "not available": reason(error)}
        if "exchange" in parts:
            raydp = _raydp(folder, stack)
        ray_runtime._OBJECT_STORE_BYTES = STORE_BYTES
        ray_runtime.start_embedded(cpus=2)
        begun = time.monotonic()
        mq = stack.enter_context(cluster.start(brokers=2, root=f"{folder}/data", namespace="bench-spark"))
        started = time.monotonic()
        bridge = stack.enter_context(SparkBridge(mq, cores=CORES, memory=MEMORY))
        cluster_s, spark_s = round(started - begun, 1), round(time.monotonic() - started, 1)
        yield {"what": "start", "cluster_s": cluster_s, "spark_s": spark_s}
        setting = Setting(mq, bridge, folder, sizes, rounds, kafka, raydp, seconds)
        for part in parts:
            yield from PARTS[part](setting)


def _turns(rows: int, rounds: int) -> list[tuple[int, int]]:
    return [(turn, rows if turn else rows // 10) for turn in range(rounds + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON value in place of the table")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, and shorter streams")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side takes its turn")
    parser.add_argument("--size", type=int, choices=[size for _, size in SIZES], help="rows of this size alone")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    arguments = parser.parse_args()
    wanted = [(rows, size) for rows, size in SIZES if arguments.size in {None, size}]
    sizes = [(rows // 10, size) for rows, size in wanted] if arguments.quick else wanted
    rows = run(arguments.only, sizes, arguments.rounds, SECONDS / 3 if arguments.quick else SECONDS)
    if arguments.json:
        print(json.dumps(list(rows)))
        return
    for row in rows:
        print(row.pop("what"))
        for name, value in row.items():
            print(f"    {name:<16} {value}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
