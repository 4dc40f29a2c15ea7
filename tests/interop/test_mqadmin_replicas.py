"""Test RocketMQ's `mqadmin` (5.3.3) against a broker with replicas: its listings, and an election."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin
from raymq.cluster import Cluster
from tests.interop.conftest import mqadmin
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.interop,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:2 replicas of each broker group share"),
]

NAMESPACE = "tools"


@pytest.fixture(scope="module")
def mq(java_suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root, config = tmp_path_factory.mktemp("replicas"), {"replication": "sync"}
    with own_ray(), cluster.start(1, root, NAMESPACE, replicas=2, config=config) as started, Admin(started) as admin:
        poll_until(lambda: len(admin.cluster_info().brokers) == 2, 30)
        yield started


def test_mqadmin_lists_replicas_and_elects_master(mq: Cluster, java_suite: Path) -> None:
    server = mq.name_servers[0]
    with Admin(mq) as admin:
        addresses = {each.replica + 1: each.address for each in admin.cluster_info().brokers}
    listed = mqadmin(java_suite, "clusterList", "-n", server)
    assert f"0     {addresses[1]}" in listed
    assert f"2     {addresses[2]}" in listed
    assert server in mqadmin(java_suite, "getControllerMetaData", "-a", server)
    in_sync = mqadmin(java_suite, "getSyncStateSet", "-a", server, "-b", "broker-a", "-n", server)
    assert "#SyncStateSetNums\t2" in in_sync
    assert "#InSyncSlaveNum\t1" in mqadmin(java_suite, "haStatus", "-n", server, "-b", addresses[1])
    epochs = mqadmin(java_suite, "getBrokerEpoch", "-n", server, "-b", "broker-a")
    assert epochs.count("EpochEntry{epoch=1, startOffset=0") == 2
    elected = mqadmin(
        *(java_suite, "electMaster", "-a", server, "-b", "2", "-bn", "broker-a", "-c", NAMESPACE, "-n", server)
    )
    assert f"#BrokerMasterAddr\t{addresses[2]}" in elected
    assert "#MasterEpoch\t2" in elected
    poll_until(lambda: f"0     {addresses[2]}" in mqadmin(java_suite, "clusterList", "-n", server), 60)
