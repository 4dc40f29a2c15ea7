"""The sides that `bench_spark.py` compares, each of which writes and reads the same rows with Spark on this machine.

Each has `out` (rows leave Spark) and `back` (what came out is read, and every value looked at). They share a session,
but for RayDP, which needs one of its own (`raydp_exchange`).
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import ray
from pyspark.sql import SparkSession

from raymq.client import Admin, Connection
from raymq.spark_bridge import SparkBridge
from tests.bench.command_program import CommandProgram
from tests.bench.exchange import VALUE, look, table

#: Of a topic on each of two brokers; Kafka's topics have twice as many partitions.
QUEUES = 2


class Side(ABC):
    """One way out of Spark and back. `turn` counts the turns of a size."""

    name: str
    ways: tuple[str, ...] = ("out", "back")

    @abstractmethod
    def out(self, rows: int, size: int, turn: int) -> float | None:
        """Rows leave Spark; seconds, if it measures itself."""

    @abstractmethod
    def back(self, rows: int, size: int, turn: int) -> float | None:
        """What came out in this turn is read."""

    def over(self, rows: int, size: int, turn: int) -> None:  # noqa: B027 - most have nothing to let go
        """The turn is over: what it takes of the disk or memory may go."""


class Topics(Side):
    """`bridge.write` and `bridge.read`."""

    name = "topic"

    def __init__(self, mq: Connection, bridge: SparkBridge) -> None:
        self._mq = mq
        self._bridge = bridge

    def out(self, rows: int, size: int, turn: int) -> None:
        topic = topic_of(rows, size, turn)
        with Admin(self._mq) as admin:
            admin.create_topic(topic, queues=QUEUES)
        written = self._bridge.write(table(self._bridge.spark, rows, size), topic, VALUE)
        assert written.rows == rows

    def back(self, rows: int, size: int, turn: int) -> None:
        look(self._bridge.read(topic_of(rows, size, turn)), "body", rows, size)


class Bodies(Side):
    """`bridge.read` of the bodies alone: one column, as RayDP's tables have."""

    name = "body"
    ways = ("back",)

    def __init__(self, bridge: SparkBridge) -> None:
        self._bridge = bridge

    def out(self, rows: int, size: int, turn: int) -> None:
        """Nothing: it reads what `Topics` has written."""

    def back(self, rows: int, size: int, turn: int) -> None:
        look(self._bridge.read(topic_of(rows, size, turn), columns=["body"]), "body", rows, size)


class Refs(Side):
    """`bridge.to_refs` and `bridge.from_refs`."""

    name = "refs"

    def __init__(self, bridge: SparkBridge) -> None:
        self._bridge = bridge
        self._made: Any = None
        self._release: Any = None

    def out(self, rows: int, size: int, turn: int) -> None:
        self._made, self._release = self._bridge.to_refs(table(self._bridge.spark, rows, size))

    def back(self, rows: int, size: int, turn: int) -> None:
        look(self._bridge.from_refs(self._made, ray.get(self._made[0]).schema), VALUE, rows, size)

    def over(self, rows: int, size: int, turn: int) -> None:
        self._release()
        self._made = self._release = None


class RayDP(Side):
    """RayDP's from_spark and to_spark."""

    name = "RayDP"

    def __init__(self, program: CommandProgram) -> None:
        self._program = program

    def out(self, rows: int, size: int, turn: int) -> float:
        self._program.tell(f"out {rows} {size}")
        return float(self._program.answer())

    def back(self, rows: int, size: int, turn: int) -> float:
        self._program.tell(f"back {rows} {size}")
        return float(self._program.answer())


class Kafka(Side):
    """Spark's own sink and source of Kafka."""

    name = "Kafka"

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self._address = address

    def out(self, rows: int, size: int, turn: int) -> None:
        writer = table(self._spark, rows, size).write.format("kafka")
        writer.option("kafka.bootstrap.servers", self._address).option("topic", topic_of(rows, size, turn)).save()

    def back(self, rows: int, size: int, turn: int) -> None:
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._address)
        look(reader.option("subscribe", topic_of(rows, size, turn)).load(), "value", rows, size)


class RowsAlone(Side):
    """The rows are made and go nowhere: this much of each way out is the same for all."""

    name = "rows alone"
    ways = ("out",)

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def out(self, rows: int, size: int, turn: int) -> None:
        table(self._spark, rows, size).write.format("noop").mode("overwrite").save()

    def back(self, rows: int, size: int, turn: int) -> None:
        raise AssertionError("nothing has left Spark that could come back")


class Parquet(Side):
    """Files on the local disk: the floor."""

    name = "Parquet"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def out(self, rows: int, size: int, turn: int) -> None:
        table(self._spark, rows, size).write.option("compression", "none").parquet(self._path(rows, size, turn))

    def back(self, rows: int, size: int, turn: int) -> None:
        look(self._spark.read.parquet(self._path(rows, size, turn)), VALUE, rows, size)

    def over(self, rows: int, size: int, turn: int) -> None:
        shutil.rmtree(self._path(rows, size, turn))

    def _path(self, rows: int, size: int, turn: int) -> str:
        return str(self._folder / topic_of(rows, size, turn))


def topic_of(rows: int, size: int, turn: int) -> str:
    """What it is called that a turn writes."""
    return f"rows-{rows}-{size}-{turn}"
