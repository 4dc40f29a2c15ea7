"""Register `format("raymq")` in a Spark session that supports it."""

from __future__ import annotations

import importlib.util
from typing import Any

from pyspark.sql import SparkSession

from raymq.client.connection import Connection
from raymq.client.errors import RayMQError
from raymq.spark_bridge.spark4_source.source_options import ClusterAddress


def has_data_sources() -> bool:
    """Return True if this Spark's Python sources can limit a batch, as in 4.2."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def register_source(spark: SparkSession, mq: Connection | None = None, *, tasks: int | None = None) -> None:
    """Register `format("raymq")` in a session. A SparkBridge registers it in its own session.

    Args:
        spark: any session of Spark 4.2, also without Ray; raymq must be installed where its workers run.
        mq: the cluster to use if the option `name_servers` is missing.
        tasks: the approximate number of tasks of a read without the option `tasks`.

    Raises:
        RayMQError: Spark is older.
    """
    if not has_data_sources():
        import pyspark

        raise RayMQError(
            f"Spark {pyspark.__version__} has no data sources in Python that can limit a batch",
            remedy="install raymq[spark4], which brings Spark 4.2; or use SparkBridge's read, stream, write and sink",
        )
    from raymq.spark_bridge.spark4_source.data_source import TopicSource

    defaults = {} if mq is None else ClusterAddress(tuple(mq.name_servers), mq.tls).as_options()
    if tasks is not None:
        defaults["tasks"] = str(tasks)
    # The class is in no module, so Spark sends it to its workers by value, with the defaults in it.
    sources: Any = spark.dataSource  # type: ignore[attr-defined]
    sources.register(type("SessionsTopicSource", (TopicSource,), {"defaults": defaults}))
