"""Test what RayMQ adds to RayDP's preparation of a session."""

from __future__ import annotations

import shlex

import pytest
from raydp.spark.ray_cluster import SparkCluster

from raymq.spark_bridge.spark_application import _SparkCluster


def test_java_agent_path_with_a_blank_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_raydp_does(self: SparkCluster) -> None:
        self._configs["spark.javaagent"] = "/home/a b/agent.jar"
        self._configs["spark.driver.extraJavaOptions"] = "-Done -javaagent:/home/a b/agent.jar -Dtwo"

    monkeypatch.setattr(SparkCluster, "_prepare_spark_configs", as_raydp_does)
    application = _SparkCluster.__new__(_SparkCluster)
    application._configs = {}
    application._prepare_spark_configs()
    options = shlex.split(application.settings["spark.driver.extraJavaOptions"])
    assert options == ["-Done", "-javaagent:/home/a b/agent.jar", "-Dtwo"]
