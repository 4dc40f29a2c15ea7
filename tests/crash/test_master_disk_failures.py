"""Test that a group survives a failing or hanging disk."""

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
    """Yield two replicas, the first one master, and a coordinator."""
    with ReplicaGroup(tmp_path, store=getattr(request, "param", None)) as made:
        made.begin()
        coordinator = CoordinatorProcess(made.keepers.keepers, [GROUP], replication="sync", min_in_sync=1)
        try:
            yield made
        finally:
            coordinator.stop()


class RecordingProducer:
    """A producer that records acknowledged messages."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.mq = Connection([group.name_server])
        self._producer = Producer(self.mq, "p")
        self._sent = 0
        self.acknowledged: set[bytes] = set()

    def send_one(self) -> bool:
        """Send one message; return whether it was acknowledged."""
        self._sent += 1
        body = b"%d" % self._sent
        try:
            if self._producer.send(Message("t", body)).status is not SendStatus.SEND_OK:
                return False
        except RayMQError:
            return False
        self.acknowledged.add(body)
        return True


def read_bodies(consumer: PullConsumer) -> set[bytes]:
    (queue,) = consumer.queues("t")
    consumer.seek(queue, "earliest")
    found: set[bytes] = set()
    while messages := consumer.poll(queue, 1_000, 0.5):
        found |= {each.body for each in messages}
    return found


def test_master_with_failed_disk_steps_down_and_rejoins(group: ReplicaGroup) -> None:
    sending = RecordingProducer(group)
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
        assert read_bodies(PullConsumer(sending.mq, "c")) >= sending.acknowledged


@pytest.mark.parametrize("group", [{"flush": "sync"}], indirect=True)
@pytest.mark.long
def test_master_with_hanging_disk_steps_down_with_sync_flush(group: ReplicaGroup) -> None:
    sending = RecordingProducer(group)
    with contextlib.closing(sending.mq):
        Admin(sending.mq).create_topic("t", queues=1)
        assert sending.send_one()
        group.disk(1, "hang")
        poll_until(lambda: sending.send_one() and group.state.master == 2, 60, "the other one is master")
        group.disk(1, "fine")
        group.await_in_sync(1, 2, timeout=40.0)
        poll_until(sending.send_one, 60)
        assert read_bodies(PullConsumer(sending.mq, "c")) >= sending.acknowledged


@pytest.mark.long
def test_only_in_sync_replica_stays_master_with_failed_disk(group: ReplicaGroup) -> None:
    """It stores nothing, but stays readable, and no other replica may become master."""
    sending = RecordingProducer(group)
    with contextlib.closing(sending.mq):
        Admin(sending.mq).create_topic("t", queues=1)
        group.kill(2)
        group.await_in_sync(1)
        poll_until(sending.send_one, 60)
        consumer = PullConsumer(sending.mq, "c")
        assert read_bodies(consumer) == sending.acknowledged
        epoch = group.state.epoch
        group.disk(1, "fail")
        poll_until(lambda: not sending.send_one(), 60, "the disk has failed")
        assert read_bodies(consumer) >= sending.acknowledged
        assert (group.state.master, group.state.epoch) == (1, epoch)


@pytest.mark.parametrize("group", [{"flush": "async"}], indirect=True)
def test_replica_with_hanging_disk_answers_after_a_deletion(group: ReplicaGroup) -> None:
    # The first message of a deleted topic waited on the event loop until the deletion was on disk.
    mq = Connection([group.name_server])
    with contextlib.closing(mq):
        producer = Producer(mq, "p")
        producer.send(Message("t", b"1"))
        group.await_end(2, 1)
        group.disk(2, "hang")
        Admin(mq).delete_topic("t")
        assert producer.send(Message("t", b"2")).status is SendStatus.SEND_OK
        group.await_in_sync(1)
        assert group.status(2).end <= group.status(1).end
        group.disk(2, "fine")
        group.await_in_sync(1, 2, timeout=40.0)
        group.await_end(2, 1)
