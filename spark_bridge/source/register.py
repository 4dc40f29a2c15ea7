"""`format("raymq")` for a session of Spark, if that is one that can have it."""

from __future__ import annotations

import importlib.util
from typing import Any

from pyspark.sql import SparkSession

from raymq.client.connection import Connection
from raymq.client.errors import RayMQError
from raymq.spark_bridge.source.options import ClusterAddress


def has_data_sources() -> bool:
    """Whether this Spark has sources in Python that can limit a batch: 4.2 does."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def register_source(spark: SparkSession, mq: Connection | None = None, *, tasks: int | None = None) -> None:
    """Let a session know `format("raymq")`. A SparkBridge does so for its own.

    Args:
        spark: any session of Spark 4.2, also without Ray; raymq has to be installed where its workers run.
        mq: the cluster that is meant where `name_servers` is not said.
        tasks: about how many tasks share a read that does not say it.

    Raises:
        RayMQError: Spark is older.
    """
    if not has_data_sources():
        import pyspark

        raise RayMQError(
            f"Spark {pyspark.__version__} has no sources in Python that can limit a batch",
            remedy="install raymq[spark4], which brings Spark 4.2; or use SparkBridge's read, stream, write and sink",
        )
    from raymq.spark_bridge.source.data_source import TopicSource

    defaults = {} if mq is None else ClusterAddress(tuple(mq.name_servers), mq.tls).as_options()
    if tasks is not None:
        defaults["tasks"] = str(tasks)
    # A class that no module has: Spark sends it to its workers by value, with the defaults in it.
    sources: Any = spark.dataSource  # type: ignore[attr-defined]
    sources.register(type("SessionsTopicSource", (TopicSource,), {"defaults": defaults}))
