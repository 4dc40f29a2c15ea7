"""Read and write topics as DataFrames, with Spark on the cluster's Ray (RayDP).

docs/spark.md describes the features. Each public name is loaded at its first use, because Spark's Python workers import
modules of this package, and the modules that only the driver needs (Ray, RayDP) would double the start time of a
worker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.spark_bridge.batch_plan import StreamBroken
    from raymq.spark_bridge.session import SparkBridge
    from raymq.spark_bridge.spark4_source.source_registration import register_source
    from raymq.spark_bridge.topic_stream import StreamProgress
    from raymq.spark_bridge.writer import TopicSink, WriteResult

__all__ = ["SparkBridge", "StreamBroken", "StreamProgress", "TopicSink", "WriteResult", "register_source"]

_MODULES = {
    "SparkBridge": "session",
    "StreamBroken": "batch_plan",
    "StreamProgress": "topic_stream",
    "TopicSink": "writer",
    "WriteResult": "writer",
    "register_source": "spark4_source.source_registration",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
