"""Test a cluster whose register is on an etcd: elections, restarts and no switch to keepers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from raymq import cluster
from raymq.actors.errors import InvalidInput, RayMQError
from raymq.client import Admin, Message, Producer, PullConsumer
from tests.chaos.actors import await_restart, pid_of
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:2 replicas of each broker group share"),
    pytest.mark.timeout(300),
]

NAMESPACE = "on-etcd"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    with etcd_servers(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


def start(root: Path, **config: Any) -> cluster.Cluster:
    settings = {"replication": "sync", "commitlog_file_bytes": 1 << 24, "index_slots": 1_000, **config}
    return cluster.start(1, root, NAMESPACE, replicas=2, config=settings)


def master_of(admin: Admin) -> str | None:
    """Return the master's actor name, or None unless both replicas are in sync."""
    with contextlib.suppress(RayMQError):
        for each in admin.cluster_info().brokers:
            if each.role == "master" and each.state == "running" and len(each.in_sync or ()) == 2:
                return "broker-a" if each.replica == 0 else f"broker-a.{each.replica}"
    return None


def send_until_acknowledged(producer: Producer, body: bytes) -> bytes:
    """Send until the message is acknowledged; return its body."""

    def acknowledged() -> bool:
        with contextlib.suppress(RayMQError):
            return bool(producer.send(Message("t", body)).message_id)
        return False

    poll_until(acknowledged, 60, "it is acknowledged")
    return body


def read_all_bodies(mq: cluster.Cluster) -> set[bytes]:
    """Return the bodies of all messages of the topic."""
    with PullConsumer(mq, "c") as pull:
        (queue,) = pull.queues("t")
        begin, end = pull.offsets(queue)
        pull.seek(queue, begin)
        found: list[bytes] = []
        while len(found) < end - begin:
            found += [each.body for each in pull.poll(queue, 100, 5.0)]
    return set(found)


@pytest.mark.long
def test_cluster_with_etcd_register_elects_and_restarts(tmp_path: Path, etcd: EtcdServers) -> None:
    root = tmp_path / "data"
    bodies: set[bytes] = set()
    with own_ray():
        for life in range(2):
            mq = start(root, etcd_endpoints=etcd.endpoints)
            admin = Admin(mq)
            admin.create_topic("t", queues=1)
            producer = Producer(mq, "p")
            assert admin.cluster_info().keepers == []
            bodies.add(send_until_acknowledged(producer, b"%d before" % life))
            former = poll_until(lambda admin=admin: master_of(admin), 60, "a master with its replica")  # type: ignore[misc]
            before = pid_of(former, NAMESPACE)
            ray.kill(ray.get_actor(former, namespace=NAMESPACE), no_restart=False)
            bodies.add(send_until_acknowledged(producer, b"%d behind an election" % life))
            await_restart(former, NAMESPACE, before)
            master = poll_until(lambda admin=admin: master_of(admin), 60, "both replicas are in sync again")  # type: ignore[misc]
            admin.elect("broker-a", 0 if master != "broker-a" else 1).wait(60)
            bodies.add(send_until_acknowledged(producer, b"%d behind one by hand" % life))
            assert bodies <= read_all_bodies(mq)
            producer.close()
            mq.stop()
        with pytest.raises(InvalidInput, match="the register is on an etcd"):
            start(root)
