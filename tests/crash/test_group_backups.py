"""Test backups of a replica group's master, and how groups treat a restored directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.errors import NotMaster
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.cluster import backup_store, restore_store
from tests.polling import poll_until
from tests.replica_group import GROUP, ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

QUEUE = MessageQueue("t", GROUP, 0)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    with ReplicaGroup(tmp_path / "group") as made:
        made.begin()
        yield made


def send(mq: Connection, count: int) -> None:
    with Producer(mq, "p", timeout=20.0, retries=100) as producer:
        for number in range(count):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)


@pytest.mark.long
def test_restored_backup_founds_group_and_joins_no_live_one(group: ReplicaGroup, tmp_path: Path) -> None:
    with Connection([group.name_server]) as mq:
        Admin(mq).create_topic("t", queues=1)
        send(mq, 50)
        with PullConsumer(mq, "g") as pull:
            pull.commit(QUEUE, 20)
        with pytest.raises(NotMaster, match="not the master"):
            backup_store(group.directory(2), tmp_path / "target")
        made = backup_store(group.directory(1), tmp_path / "target")
        send(mq, 10)
        group.kill(2)
        group.wipe(2)
        restore_store(tmp_path / "target", group.directory(2), new_address=True)
        group.start(2)
        poll_until(lambda: group.status(2).role == "refused", 20)
        assert "not" in group.status(2).trouble
        send(mq, 10)
        again = backup_store(group.directory(1), tmp_path / "target")
        assert again.log_end > made.log_end
    with ReplicaGroup(tmp_path / "new") as other:
        restore_store(tmp_path / "target", other.directory(1), at=made.name, new_address=True)
        other.begin()
        with Connection([other.name_server]) as mq, PullConsumer(mq, "g") as pull:
            assert pull.committed(QUEUE) == 20
            pull.seek(QUEUE, 0)
            bodies: list[bytes] = []
            poll_until(lambda: bodies.extend(each.body for each in pull.poll(QUEUE, 100, 1.0)) or len(bodies) >= 50, 20)
            assert bodies == [b"%d" % number for number in range(50)]
        other.await_end(2, of=1)
