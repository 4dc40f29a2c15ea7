"""Test when a cluster counts as alive and as ready."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.actors.protocol import BrokerInfo, ClusterView
from raymq.client.admin.cluster_health import liveness, readiness
from raymq.client.results import ClusterInfo, KeeperInfo, NameServerInfo, SchedulerInfo


def broker(name: str, replica: int = 0, role: str = "master", state: str = "running") -> BrokerInfo:
    return BrokerInfo(name, replica, role, state, 1, f"h:{replica}", 7, "", "", 0.1)


def info(*brokers: BrokerInfo, name_server_pid: int | None = 8, keepers: Any = ()) -> ClusterInfo:
    return ClusterInfo(list(brokers), [NameServerInfo("h:9876", name_server_pid)], SchedulerInfo(9, 0.0), list(keepers))


def view(**masters: str) -> ClusterView:
    return ClusterView({name.replace("_", "-"): ("c", {0: address}) for name, address in masters.items()})


LOST = broker("broker-b", state="unreachable")
BROKER, REPLICA = broker("broker-a"), broker("broker-a", 1, "replica")
KEEPER = KeeperInfo(1, "h:1", None, voter=None, state="unreachable")


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (info(BROKER, REPLICA), set()),
        (info(BROKER, broker("broker-a", 1, "replica", "unreachable")), {"broker broker-a replica 1"}),
        (info(BROKER, name_server_pid=None), {"name server h:9876"}),
        (info(BROKER, keepers=[KEEPER]), {"keeper 1"}),
        (ClusterInfo([], [], SchedulerInfo(None, None)), {"processes"}),
    ],
)
def test_liveness_needs_every_process(found: ClusterInfo, failing: set[str]) -> None:
    assert {each.check for each in liveness(found) if not each.ok} == failing


@pytest.mark.parametrize(
    ("found", "views", "expected", "failing"),
    [
        (info(BROKER, REPLICA), {"h:1": view(broker_a="h:0")}, None, set()),
        (info(BROKER), {"h:1": view(broker_a="h:0"), "h:2": None}, 1, set()),
        (info(BROKER), {"h:1": view(broker_a="h:0")}, 2, {"broker groups"}),
        (info(BROKER), {"h:1": view(broker_a="h:0"), "h:2": view()}, None, {"routes of name server h:2"}),
        (info(REPLICA), {"h:1": view()}, None, {"broker group broker-a"}),
        (info(broker("broker-a", state="unreachable")), {"h:1": view(broker_a="h:0")}, None, {"broker group broker-a"}),
        (info(BROKER, LOST), {"h:1": view(broker_a="h:0")}, None, {"broker group broker-b"}),
        (info(BROKER), {"h:1": None}, None, {"name servers"}),
        (info(), {"h:1": view()}, None, {"broker groups"}),
    ],
)
def test_readiness_needs_masters_in_all_routes(
    found: ClusterInfo, views: dict[str, ClusterView | None], expected: int | None, failing: set[str]
) -> None:
    assert {each.check for each in readiness(found, views, expected) if not each.ok} == failing
