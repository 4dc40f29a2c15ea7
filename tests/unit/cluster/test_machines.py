"""Which of Ray's nodes count as machines."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.actors.naming import SPARK_NODE_PREFIX
from raymq.client import BrokerUnavailable
from raymq.cluster.machines import addresses_by_resource, list_machines


def node(address: str, *resources: str, alive: bool = True) -> dict[str, Any]:
    told = {"CPU": 2.0, f"node:{address}": 1.0, **dict.fromkeys(resources, 1.0)}
    return {"NodeID": f"id-{address}", "Alive": alive, "NodeManagerAddress": address, "Resources": told}


def test_a_machine_is_told_by_its_disk_or_by_its_address_and_ones_own_comes_first() -> None:
    nodes = [
        node("10.0.0.1", "broker_h1"),
        node("10.0.0.2"),
        node("10.0.0.3", "broker_h3"),
        node("10.0.0.4", alive=False),
    ]
    told = [("broker_h3", "10.0.0.3"), ("broker_h1", "10.0.0.1"), ("node:10.0.0.2", "10.0.0.2")]
    assert list_machines(nodes, "id-10.0.0.3") == told
    assert addresses_by_resource(told)["broker_h1"] == "10.0.0.1"


def test_on_the_loopback_of_one_machine_sockets_listen_where_all_look() -> None:
    assert list_machines([node("127.0.0.2", "broker_h")], "id-127.0.0.2") == [("broker_h", "127.0.0.1")]


@pytest.mark.parametrize("address", ["127.0.0.2", "10.0.0.1"])
def test_a_node_that_is_there_for_a_spark_session_gets_no_brokers(address: str) -> None:
    """It goes with the session: a broker that was bound to it could never start again."""
    ours = node(address, "broker_h")
    of_spark = node("127.70.1.2", f"{SPARK_NODE_PREFIX}0123456789ab")
    assert list_machines([ours, of_spark], f"id-{address}") == list_machines([ours], f"id-{address}")


def test_two_machines_that_say_that_they_are_the_same_are_refused() -> None:
    """As after a disk was copied: a broker would come up on either, with what that one happens to have."""
    nodes = [node("10.0.0.1", "broker_h"), node("10.0.0.2", "broker_h")]
    with pytest.raises(BrokerUnavailable, match=r"10\.0\.0\.1 and 10\.0\.0\.2"):
        addresses_by_resource(list_machines(nodes, "id-10.0.0.1"))
