"""Check that each written message is in a topic exactly once: by key and by count."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import functions as F  # noqa: N812 - the usual name of this module

from raymq import cluster
from raymq.client import Admin
from raymq.spark_bridge import SparkBridge


def count_messages(mq: cluster.Cluster, topic: str) -> int:
    """Return the number of messages of a topic that readers see."""
    with Admin(mq) as admin:
        return sum(queue.max_offset - queue.min_offset for queue in admin.topic_stats(topic).values())


def count_bodies(bridge: SparkBridge, topic: str) -> Counter[str]:
    """Return how often each body occurs in a topic."""
    rows = bridge.read(topic).groupBy(F.col("body").cast("string").alias("body")).count().collect()
    return Counter({row["body"]: row["count"] for row in rows})


def describe_differences(expected: Counter[str], found: Counter[str]) -> str:
    """Describe missing and surplus messages; an empty text if there are none."""
    lost, more = expected - found, found - expected
    return f"{len(lost)} lost, {len(more)} too many" if lost or more else ""
