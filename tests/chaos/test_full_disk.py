"""Test a cluster whose disk another program has filled to the last byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin, Message, Producer, PullConsumer, RayMQError
from raymq.cluster import Cluster
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import EmergencyCleaner
from raymq.storage.errors import StoreFull
from raymq.storage.store_paths import StorePaths
from tests.chaos.actors import await_restart, kill
from tests.full_disk import fill, small_file_system
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.chaos, pytest.mark.ray]

NAMESPACE = "full"
#: One log file holds everything, so that no file may be deleted, whatever the disk's ratio is.
STORE = {"index_slots": 1_000, "index_entries": 100_000}
COUNT = 200


@pytest.fixture(scope="module", autouse=True)
def with_ray() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path, "300m"):
        yield tmp_path


def start_cluster(disk: Path) -> Cluster:
    return cluster.start(brokers=1, root=disk / "data", namespace=NAMESPACE, config=STORE)


def send(mq: Cluster, *bodies: bytes) -> None:
    with Producer(mq, "g") as producer:
        for body in bodies:
            producer.send(Message("t", body, keys=["k"]))


def read_bodies(mq: Cluster) -> list[bytes]:
    with PullConsumer(mq, group="etl") as consumer:
        [queue] = consumer.queues("t")
        consumer.seek(queue, 0)
        return [message.body for message in consumer.poll(queue, max_messages=10_000, timeout=20.0)]


def test_killed_broker_restarts_and_is_read_on_full_disk(disk: Path) -> None:
    """Guard against fault 13.25."""
    bodies = [b"%d" % number for number in range(COUNT)]
    with start_cluster(disk) as mq:
        Admin(mq).create_topic("t", queues=1)
        send(mq, *bodies)
        address = Admin(mq).cluster_info().brokers[0].address
        for _ in range(2):  # the second time without the disk reserve
            filler = fill(disk)
            await_restart("broker-a", NAMESPACE, kill("broker-a", NAMESPACE))
            poll_until(lambda: [each.state for each in Admin(mq).cluster_info().brokers] == ["running"], 60)
            assert Admin(mq).cluster_info().brokers[0].address == address
            assert read_bodies(mq) == bodies
            with pytest.raises(RayMQError):
                send(mq, b"refused")
        filler.unlink()

        def sent() -> bool:
            try:
                send(mq, b"again")
            except RayMQError:
                return False
            return True

        poll_until(sent, 60)
        assert read_bodies(mq)[-1] == b"again"


@pytest.mark.long
def test_start_without_free_space_raises_store_full(disk: Path) -> None:
    bodies = [b"%d" % number for number in range(COUNT)]
    with start_cluster(disk) as mq:
        Admin(mq).create_topic("t", queues=1)
        send(mq, *bodies)
    broker = disk / "data" / "broker-a"
    StorePaths(broker).disk_reserve.unlink()
    maker = EmergencyCleaner(broker, StoreConfig(**STORE), lambda: 0)  # type: ignore[arg-type]
    while maker.step():
        pass
    filler = fill(disk)
    with pytest.raises(StoreFull) as caught:
        start_cluster(disk)
    assert str(broker) in str(caught.value)
    filler.unlink()
    with start_cluster(disk) as mq:
        assert read_bodies(mq) == bodies
