"""A master whose disk fails, or hangs, leaves office for a replica that has all, and stays where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.protocol import SendStatus
from raymq.client import Admin, Connection, Message, Producer, PullConsumer, RayMQError
from tests.crash.coordinator_process import CoordinatorProcess
from tests.polling import poll_until
from tests.replica_group import GROUP, ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


@pytest.fixture
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReplicaGroup]:
    """Two replicas, the first one master, and a coordinator."""
    with ReplicaGroup(tmp_path, store=getattr(request, "param", None)) as made:
        made.begin()
        coordinator = CoordinatorProcess(made.keepers.keepers, [GROUP], replication="sync", min_in_sync=1)
        try:
            yield made
        finally:
            coordinator.stop()


class Sending:
    """A producer that goes on until all is acknowledged."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.mq = Connection([group.name_server])
        self._producer = Producer(self.mq, "p")
        self._sent = 0
        self.acknowledged: set[bytes] = set()

    def send_one(self) -> bool:
        """Whether one more was acknowledged."""
        self._sent += 1
        body = b"%d" % self._sent
        try:
            if self._producer.send(Message("t", body)).status is not SendStatus.SEND_OK:
                return False
        except RayMQError:
            return False
        self.acknowledged.add(body)
        return True


def bodies(consumer: PullConsumer) -> set[bytes]:
    (queue,) = consumer.queues("t")
    consumer.seek(queue, "earliest")
    found: set[bytes] = set()
    while messages := consumer.poll(queue, 1_000, 0.5):
        found |= {each.body for each in messages}
    return found


def test_a_master_whose_disk_fails_leaves_its_office_and_comes_back_as_a_replica(group: ReplicaGroup) -> None:
    sending = Sending(group)
    with contextlib.closing(sending.mq):
        Admin(sending.mq).create_topic("t", queues=1)
        assert sending.send_one()
        group.disk(1, "fail")
        poll_until(lambda: sending.send_one() and group.state.master == 2, 60, "the other one is master")
        poll_until(sending.send_one, 60)
        group.disk(1, "fine")
        group.await_in_sync(1, 2, timeout=40.0)
        assert group.state.master == 2
        poll_until(sending.send_one, 60)
        assert bodies(PullConsumer(sending.mq, "c")) >= sending.acknowledged


@pytest.mark.parametrize("group", [{"flush": "sync"}], indirect=True)
@pytest.mark.long
def test_a_master_whose_disk_hangs_leaves_its_office_where_messages_wait_for_disks(group: ReplicaGroup) -> None:
    sending = Sending(group)
    with contextlib.closing(sending.mq):
        Admin(sending.mq).create_topic("t", queues=1)
        assert sending.send_one()
        group.disk(1, "hang")
        poll_until(lambda: sending.send_one() and group.state.master == 2, 60, "the other one is master")
        group.disk(1, "fine")
        group.await_in_sync(1, 2, timeout=40.0)
        poll_until(sending.send_one, 60)
        assert bodies(PullConsumer(sending.mq, "c")) >= sending.acknowledged


@pytest.mark.long
def test_the_only_one_in_sync_keeps_its_office_when_its_disk_fails(group: ReplicaGroup) -> None:
    """It takes nothing any more, but what it has can be read, and nobody else may be master."""
    sending = Sending(group)
    with contextlib.closing(sending.mq):
        Admin(sending.mq).create_topic("t", queues=1)
        group.kill(2)
        group.await_in_sync(1)
        poll_until(sending.send_one, 60)
        consumer = PullConsumer(sending.mq, "c")
        assert bodies(consumer) == sending.acknowledged
        epoch = group.state.epoch
        group.disk(1, "fail")
        poll_until(lambda: not sending.send_one(), 60, "the disk has failed")
        assert bodies(consumer) >= sending.acknowledged
        assert (group.state.master, group.state.epoch) == (1, epoch)
