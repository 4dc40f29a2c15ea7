"""One cluster and one Spark for all modules that use `shared_spark`: a start takes half a minute of a core."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from raymq import cluster
from raymq.demo import demo_run as demo_flow
from raymq.spark_bridge import SparkBridge
from tests.ray_cluster import own_cluster

CONFIG = {
    "commitlog_file_bytes": 64 << 20,
    "index_slots": 100_000,
    "index_entries": 400_000,
    "delay_levels": demo_flow.CONFIG["delay_levels"],
    "max_message_bytes": 20 << 20,
}


class SharedSpark:
    """A cluster of two brokers and a Spark with two cores on its Ray."""

    running: SharedSpark | None = None

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._stack = ExitStack()
        self.mq: cluster.Cluster = self._stack.enter_context(own_cluster(folders, "spark", CONFIG))
        self._bridge: SparkBridge | None = None

    @property
    def bridge(self) -> SparkBridge:
        """Return the Spark, started if none runs."""
        if self._bridge is None:
            self._bridge = SparkBridge(self.mq, cores=2, memory="512m")
        return self._bridge

    def close_bridge(self) -> None:
        """End the Spark; the next access to `bridge` starts a new one."""
        ended, self._bridge = self._bridge, None
        if ended is not None:
            ended.close()

    @classmethod
    def get(cls, folders: pytest.TempPathFactory) -> SharedSpark:
        """Return the running instance, or start one."""
        if cls.running is None:
            cls.running = cls(folders)
        return cls.running

    @classmethod
    def end(cls) -> None:
        """Stop the running instance, if there is one."""
        ended, cls.running = cls.running, None
        if ended is not None:
            with ended._stack:
                ended.close_bridge()
