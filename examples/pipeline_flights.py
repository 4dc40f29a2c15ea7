"""A data pipeline of topics, Spark and Ray: two weeks of flights are reported, counted per hour, and read back.

    python examples/pipeline_flights.py [FOLDER]

- An actor of Ray sends 12,208 departures from datasets/flights.csv into the topic `flights`, in the order in which they
  became known: a flight that left two hours late is reported two hours late.
- A streaming query of Spark counts them per hour and airport, with a watermark, into the topic `flights_per_hour`;
  another one puts what was reported more than two hours late into `flights_late`.
- Another actor of Ray reads the counts back, and so does Ray Data.

Kill it at any moment and start it again with the same FOLDER: it goes on, and every flight is counted once.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import ray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming import StreamingQuery

from raymq import cluster
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.spark_bridge import SparkBridge

FLIGHTS = Path(__file__).resolve().parents[1] / "datasets" / "flights.csv"
TOPICS = {"flights": 2, "flights_per_hour": 1, "flights_late": 1}
LATE = timedelta(hours=2)
EVENT = "airport STRING, at TIMESTAMP, reported TIMESTAMP"
COUNT = "airport STRING, hour STRING, flights BIGINT"
#: What follows the last flight: its time closes all windows.
END = "end"
BATCH = 500


def events() -> list[dict[str, str]]:
    """All departures as they become known, each with its hour and when it was reported."""
    reports = []
    with FLIGHTS.open(newline="") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["time_hour"])
            delay = timedelta(minutes=int(row["dep_delay"]) if row["dep_delay"] != "NA" else 0)
            reports.append((max(at, at + delay), row["origin"], at))
    reports.sort()
    last = reports[-1][0] + timedelta(days=30)
    reports += [(last, END, last)] * 64
    return [{"airport": airport, "at": at.isoformat(), "reported": when.isoformat()} for when, airport, at in reports]


def is_late(event: dict[str, str]) -> bool:
    """Whether it was reported more than `LATE` after its hour."""
    return datetime.fromisoformat(event["reported"]) - datetime.fromisoformat(event["at"]) > LATE


@ray.remote(num_cpus=0)
class Reporter:
    """Sends the events; number n goes to queue n modulo their number, so that one sees what is there already."""

    def report(self, mq: Connection, pause_seconds: float) -> int:
        """Send what is not there yet; how many events there are."""
        reports = events()
        with Admin(mq) as admin, Producer(mq, group="reporter", idempotent=True, timeout=60.0) as producer:
            there = admin.topic_stats("flights")
            queues = sorted(there)
            mine = [reports[number :: len(queues)] for number in range(len(queues))]
            at = [there[queue].max_offset for queue in queues]
            while any(at[number] < len(mine[number]) for number in range(len(queues))):
                for number, queue in enumerate(queues):
                    part = mine[number][at[number] : at[number] + BATCH // len(queues)]
                    if part:
                        producer.send_batch([Message("flights", json.dumps(e).encode()) for e in part], queue=queue)
                        at[number] += len(part)
                time.sleep(pause_seconds)
        return len(reports)


@ray.remote(num_cpus=0)
class Reader:
    """Reads the counts with a consumer of RayMQ."""

    def total(self, mq: Connection) -> int:
        """How many flights were counted."""
        flights: int = 0
        with PullConsumer(mq, group="reader") as consumer:
            for queue in consumer.queues("flights_per_hour"):
                consumer.seek(queue, 0)
                while messages := consumer.poll(queue, max_messages=1000, timeout=0.0):
                    flights += sum(json.loads(message.body)["flights"] for message in messages)
        return flights


def start_queries(bridge: SparkBridge, folder: Path) -> list[StreamingQuery]:
    """The two streams; each has a checkpoint, and goes on where it stood."""

    def stream(name: str) -> DataFrame:
        return bridge.stream("flights", name, start="earliest", max_offsets_per_batch=4 * BATCH, schema=EVENT)

    def into(topic: str, rows: DataFrame, name: str) -> StreamingQuery:
        writer = rows.select(F.to_json(F.struct("*")).alias("value"), F.col("airport").alias("key"))
        sink = bridge.sink(topic, "value", keys="key")
        options = writer.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / name))
        return options.trigger(processingTime="500 milliseconds").start()

    late = F.col("reported") - F.col("at") > F.expr("INTERVAL 2 HOURS")
    # The queues are read through side by side, not to the second: the watermark is a day behind.
    windows = stream("per-hour").where(~late).withWatermark("at", "1 day").groupBy("airport", F.window("at", "1 hour"))
    counts = windows.agg(F.count("*").alias("flights"))
    hours = counts.select("airport", F.col("window.start").cast("string").alias("hour"), "flights")
    return [
        into("flights_per_hour", hours, "per-hour"),
        into("flights_late", stream("late").where(late).select("airport", "at", "reported"), "late"),
    ]


def stored(mq: Connection, topic: str) -> int:
    """How many messages a topic has."""
    stats: dict[MessageQueue, Any] = Admin(mq).topic_stats(topic)
    return sum(each.max_offset for each in stats.values())


def main(mq: Connection, folder: Path, pause_seconds: float = 0.2) -> bool:
    """Run against a cluster that reaches Ray; whether every flight was counted once."""
    for topic, queues in TOPICS.items():
        Admin(mq).create_topic(topic, queues=queues)
    known = [event for event in events() if event["airport"] != END]
    hours = Counter((event["airport"], event["at"]) for event in known if not is_late(event))
    late = sum(map(is_late, known))
    with SparkBridge(mq, cores=2, memory="512m") as bridge:
        reporting = Reporter.remote().report.remote(mq, pause_seconds)  # type: ignore[attr-defined]
        queries = start_queries(bridge, folder)
        while stored(mq, "flights_per_hour") < len(hours) or stored(mq, "flights_late") < late:
            for query in queries:
                if (problem := query.exception()) is not None:
                    raise problem
            time.sleep(0.5)
        for query in queries:
            query.stop()
        ray.get(reporting)
        total: int = ray.get(Reader.remote().total.remote(mq))  # type: ignore[attr-defined]
        refs, release = bridge.to_refs(bridge.read("flights_per_hour", schema=COUNT).select("airport", "flights"))
        logging.getLogger("ray.data").setLevel(logging.WARNING)  # it tells of every step
        counts = ray.data.from_arrow_refs(refs).to_pandas()
        release()
    for airport, flights in counts.groupby("airport")["flights"].sum().items():
        print(f"{airport}: {flights} flights")
    exact = total == sum(hours.values()) and stored(mq, "flights_per_hour") == len(hours)
    exact = exact and stored(mq, "flights_late") == late
    print(f"{total} flights in {len(hours)} hours, {late} reported late: {'exact' if exact else 'NOT exact'}")
    return exact


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="raymq-flights-"))
    with cluster.start(brokers=2, root=root / "brokers", namespace="pipeline") as running:
        sys.exit(0 if main(running, root / "checkpoints") else 1)
