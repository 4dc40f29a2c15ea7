"""Whether what was written into a topic is there once: by key and by count."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from raymq import cluster
from raymq.client import Admin
from raymq.spark_bridge import SparkBridge


def stored(mq: cluster.Cluster, topic: str) -> int:
    """How many messages a topic has that a reader sees."""
    with Admin(mq) as admin:
        return sum(queue.max_offset - queue.min_offset for queue in admin.topic_stats(topic).values())


def content(bridge: SparkBridge, topic: str) -> Counter[str]:
    """How often each body is there."""
    rows = bridge.read(topic).groupBy(F.col("body").cast("string").alias("body")).count().collect()
    return Counter({row["body"]: row["count"] for row in rows})


def differences(expected: Counter[str], found: Counter[str]) -> str:
    """What is wrong; empty where every message is there once."""
    lost, more = expected - found, found - expected
    return f"{len(lost)} lost, {len(more)} too many" if lost or more else ""
