"""Test which Ray nodes count as machines."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.actors.naming import SPARK_NODE_PREFIX
from raymq.client import BrokerUnavailable
from raymq.cluster.machines import addresses_by_resource, list_machines


def node(address: str, *resources: str, alive: bool = True) -> dict[str, Any]:
    all_resources = {"CPU": 2.0, f"node:{address}": 1.0, **dict.fromkeys(resources, 1.0)}
    return {"NodeID": f"id-{address}", "Alive": alive, "NodeManagerAddress": address, "Resources": all_resources}


def test_machines_are_listed_by_resource_own_machine_first() -> None:
    nodes = [
        node("10.0.0.1", "broker_h1"),
        node("10.0.0.2"),
        node("10.0.0.3", "broker_h3"),
        node("10.0.0.4", alive=False),
    ]
    expected = [("broker_h3", "10.0.0.3"), ("broker_h1", "10.0.0.1"), ("node:10.0.0.2", "10.0.0.2")]
    assert list_machines(nodes, "id-10.0.0.3") == expected
    assert addresses_by_resource(expected)["broker_h1"] == "10.0.0.1"


def test_loopback_addresses_become_127_0_0_1() -> None:
    assert list_machines([node("127.0.0.2", "broker_h")], "id-127.0.0.2") == [("broker_h", "127.0.0.1")]


@pytest.mark.parametrize("address", ["127.0.0.2", "10.0.0.1"])
def test_spark_session_node_is_no_machine_for_brokers(address: str) -> None:
    """Such a node ends with its session, and its brokers could not restart."""
    ours = node(address, "broker_h")
    of_spark = node("127.70.1.2", f"{SPARK_NODE_PREFIX}0123456789ab")
    assert list_machines([ours, of_spark], f"id-{address}") == list_machines([ours], f"id-{address}")


def test_two_machines_with_one_identity_are_refused() -> None:
    """After a disk was copied, a broker could start on either machine with different data."""
    nodes = [node("10.0.0.1", "broker_h"), node("10.0.0.2", "broker_h")]
    with pytest.raises(BrokerUnavailable, match=r"10\.0\.0\.1 and 10\.0\.0\.2"):
        addresses_by_resource(list_machines(nodes, "id-10.0.0.1"))
