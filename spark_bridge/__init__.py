"""Topics as DataFrames, on Spark that runs on the cluster's Ray (RayDP). docs/spark.md tells what it can do.

The names are loaded when they are first used: Spark's Python workers import modules of this package, and what the
driver needs (Ray, RayDP) would double their start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.spark_bridge.planning import StreamBroken
    from raymq.spark_bridge.session import SparkBridge
    from raymq.spark_bridge.sink import TopicSink
    from raymq.spark_bridge.source.register import register_source
    from raymq.spark_bridge.stream import StreamProgress
    from raymq.spark_bridge.writer import WriteResult

__all__ = ["SparkBridge", "StreamBroken", "StreamProgress", "TopicSink", "WriteResult", "register_source"]

_HOMES = {
    "SparkBridge": "session",
    "StreamBroken": "planning",
    "StreamProgress": "stream",
    "TopicSink": "sink",
    "WriteResult": "writer",
    "register_source": "source.register",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
