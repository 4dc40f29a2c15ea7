"""Test the error of a start whose settings differ from the running cluster."""

from __future__ import annotations

from typing import Any

import pytest

from raymq import cluster
from raymq.client import InvalidInput
from raymq.cluster.cluster_config import ClusterConfig
from raymq.cluster.cluster_launch import settings_mismatch


def arguments(config: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    plain = {"brokers": 2, "root": "/data", "replicas": 1, "name_servers": 1, "port": 0}
    return plain | others | {"config": ClusterConfig.load(config).as_dict()}


@pytest.mark.parametrize(
    ("running", "wanted", "said"),
    [
        (arguments({"flush": "sync"}), arguments(), "flush is 'sync', not 'async'"),
        (arguments(), arguments({"flush": "sync"}), "flush is 'async', not 'sync'"),
        (arguments(brokers=3), arguments(), "brokers is 3, not 2"),
        (arguments(), arguments({"auto_create_topics": True}), "auto_create_topics is False, not True"),
        (arguments(root="/data"), arguments(root="/other"), "root is '/data', not '/other'"),
    ],
)
def test_mismatch_error_names_only_the_differing_setting(
    running: dict[str, Any], wanted: dict[str, Any], said: str
) -> None:
    error = settings_mismatch("raymq", running, wanted)
    assert f"namespace raymq runs with other settings: {said} (" in str(error)
    assert "cluster.connect() joins it" in error.remedy
    assert error.field == said.partition(" ")[0]


def test_mismatch_of_brokers_suggests_add_broker() -> None:
    error = settings_mismatch("raymq", arguments(brokers=3), arguments({"flush": "sync"}))
    assert error.field == "brokers, flush"
    assert "add_broker" in error.remedy


def test_start_with_a_name_as_brokers_raises_type_error() -> None:
    with pytest.raises(TypeError, match="brokers must be a number of brokers; the cluster's name is namespace="):
        cluster.start("raymq")  # type: ignore[arg-type]


def test_connect_with_an_address_as_namespace_has_a_hint() -> None:
    with pytest.raises(InvalidInput, match="pass addresses of name servers as name_servers="):
        cluster.connect("127.0.0.1:9876")
