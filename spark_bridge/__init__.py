"""Topics as DataFrames, on Spark that runs on the cluster's Ray (RayDP). docs/spark.md tells what it can do.

The names are loaded when they are first used: Spark's Python workers import modules of this package, and what the
driver needs (Ray, RayDP) would double their start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.spark_bridge.session import SparkBridge
    from raymq.spark_bridge.writer import WriteResult

__all__ = ["SparkBridge", "WriteResult"]


def __getattr__(name: str) -> Any:
    if name == "SparkBridge":
        from raymq.spark_bridge.session import SparkBridge

        return SparkBridge
    if name == "WriteResult":
        from raymq.spark_bridge.writer import WriteResult

        return WriteResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
