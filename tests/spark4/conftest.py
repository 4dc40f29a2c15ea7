"""One cluster and one Spark 4.2 on its Ray for all modules of this folder (`make test-spark4`).

In the ordinary environment with Spark 3.5 no test of it is collected.
"""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from raymq import cluster
from raymq.client import Admin, Message, Producer
from tests.ray_cluster import own_cluster

_SPARK_4_2 = importlib.util.find_spec("pyspark") and importlib.util.find_spec("pyspark.sql.streaming.datasource")

collect_ignore_glob = [] if _SPARK_4_2 else ["test_*.py"]

CONFIG = {"commitlog_file_bytes": 64 << 20, "index_slots": 100_000, "index_entries": 400_000}


@pytest.fixture(scope="session")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Cluster]:
    with own_cluster(tmp_path_factory, "spark4", CONFIG) as running:
        yield running


@pytest.fixture(scope="session")
def bridge(mq: cluster.Cluster) -> Iterator[Any]:
    from raymq.spark_bridge import SparkBridge

    with SparkBridge(mq, cores=2, memory="512m") as running:
        yield running


@pytest.fixture(scope="session")
def spark(bridge: Any) -> Any:
    return bridge.spark


@pytest.fixture
def topic(mq: cluster.Cluster) -> str:
    return new_topic(mq)


@pytest.fixture
def target(mq: cluster.Cluster) -> str:
    return new_topic(mq)


def new_topic(mq: cluster.Cluster) -> str:
    name = f"t{uuid.uuid4().hex[:10]}"
    with Admin(mq) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def send(mq: cluster.Cluster) -> Iterator[Any]:
    """Return a function that sends messages with these bodies."""
    with Producer(mq, group="tests") as producer:

        def batch(topic: str, bodies: list[str]) -> None:
            # A batch goes to one queue: several batches fill all queues.
            for start in range(0, len(bodies), 50):
                producer.send_batch([Message(topic, body.encode()) for body in bodies[start : start + 50]])

        yield batch
