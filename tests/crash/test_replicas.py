"""Run broker groups of whole processes: acknowledged messages survive the loss of any machine and any election.

Test names contain the number of the trap that they cover; the traps are faults of other brokers.
"""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest

from raymq.actors.errors import (
    GroupNotFound,
    RayMQError,
)
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.client import Admin, Connection, Message, Producer, PullConsumer, SimpleConsumer
from raymq.client.bulk.staged_write import StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from tests import staged_rows
from tests.polling import poll_until
from tests.replica_clients import QUEUES, Clients, numbered
from tests.replica_group import GROUP, ReplicaGroup
from tests.store_records import make_record

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


def test_acknowledged_messages_survive_loss_of_master_machine(group: ReplicaGroup, clients: Clients) -> None:
    sent = numbered(0, 200)
    clients.send(*sent)
    group.kill(1)
    group.wipe(1)
    assert group.elect() == 2
    more = numbered(200, 220)
    clients.send(*more)
    assert set(clients.bodies()) == {*sent, *more}
    found = poll_until(lambda: clients.found(lambda: clients.admin.query_by_key("t", "m17")), 15)
    assert [each.body for each in found] == [b"m17"]  # trap 27: a replica has an index of its own


def test_trap_12_new_master_has_topics_groups_and_offsets(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 40))
    clients.admin.create_topic("late", queues=3)
    clients.admin.create_topic("gone", queues=1)
    clients.send(b"in it", topic="gone")
    clients.admin.delete_topic("gone")
    offsets = {queue: clients.pull.offsets(queue)[1] - 1 for queue in clients.pull.queues("t")}
    for queue, offset in offsets.items():
        clients.pull.commit(queue, offset)
    group.kill(1)
    group.wipe(1)
    group.elect()
    with Connection([group.name_server]) as mq:
        admin, pull = Admin(mq), PullConsumer(mq, "pullers")
        poll_until(lambda: clients.found(lambda: "late" in admin.topics()), 15)
        assert "gone" not in admin.topics()
        assert {queue: pull.committed(queue) for queue in offsets} == offsets
        assert len(pull.queues("late")) == 3


@pytest.mark.long
def test_trap_26_new_master_delivers_timed_messages_once(group: ReplicaGroup, clients: Clients) -> None:
    clients.producer.send(Message("t", b"level", delay_level=2))
    clients.producer.send(Message("t", b"timer", deliver_at=time.time() + 4))
    clients.producer.send(Message("t", b"later", delay_level=3))
    group.kill(1)
    group.wipe(1)
    group.elect()
    poll_until(lambda: set(clients.bodies()) >= {b"level", b"timer"}, 30)
    assert sorted(clients.bodies()) == [b"level", b"timer"]


def test_each_timer_is_delivered_once_over_failovers(group: ReplicaGroup, clients: Clients) -> None:
    """Each replica derives its timers itself: lose a master, and let its successor hand over to it."""

    def send_timers(mark: str, seconds: float, count: int = 10) -> list[bytes]:
        sent = numbered(0, count, mark)
        for body in sent:
            clients.asked(lambda body=body: clients.producer.send(Message("t", body, deliver_at=time.time() + seconds)))
        return sent

    def await_indexed(number: int, timers: int) -> None:
        state = group.directory(number) / "raymq" / "timers" / "state.json"
        poll_until(lambda: state.exists() and f'"enqueued": {timers},' in state.read_text(), 20, "timers are indexed")

    early, late = send_timers("early", 1.0), send_timers("late", 10.0)
    await_indexed(2, 20)
    poll_until(lambda: set(clients.bodies()) >= set(early), 20)
    group.kill(1)
    assert group.elect() == 2
    middle = send_timers("middle", 2.0)
    group.start(1)
    group.await_in_sync(1, 2)
    poll_until(lambda: set(clients.bodies()) >= {*early, *middle}, 20)
    await_indexed(1, 30)
    assert group.elect(1) == 1
    last = send_timers("last", 2.0)
    poll_until(lambda: set(clients.bodies()) >= {*early, *middle, *late, *last}, 40)
    assert sorted(clients.bodies()) == sorted([*early, *middle, *late, *last])


def test_new_master_keeps_pending_acks_and_acknowledgements(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 10))
    with SimpleConsumer(clients.mq, "poppers", {"t": "*"}) as consumer:
        taken = poll_until(lambda: consumer.receive(4, invisible_duration=60, await_duration=2), 15)
        lent = consumer.receive(3, invisible_duration=6, await_duration=2)
        assert consumer.ack(taken[0])
        done = [taken[0].body]
        group.kill(1)
        group.wipe(1)
        group.elect()
        got: list[bytes] = []

        def rest() -> bool:
            found = clients.found(lambda: consumer.receive(10, invisible_duration=60, await_duration=1))
            got.extend(each.body for each in found or [])  # type: ignore[attr-defined]
            return len(set(got)) >= 10 - len(taken)

        poll_until(rest, 40)
    assert not set(done) & set(got)
    assert set(got) == set(numbered(0, 10)) - {each.body for each in taken}
    assert {each.body for each in lent} <= set(got)


@pytest.mark.long
def test_new_master_commits_staged_write(group: ReplicaGroup, clients: Clients) -> None:
    write = StagedWrite.open(clients.mq, "t", {GROUP})
    with StagedWriter([group.name_server]) as writer:
        for queue_id in range(QUEUES):
            rows = [make_record(b"row %d %d" % (queue_id, each), topic="t", queue_id=queue_id) for each in range(50)]
            sizes = np.array([len(each) for each in rows], np.int32)
            queue = MessageQueue("t", GROUP, queue_id)
            staged_rows.send_chunk(writer, write, "part", queue_id, queue, b"".join(rows), sizes)
    assert clients.bodies() == []
    group.kill(1)
    group.wipe(1)
    group.elect()

    def committed() -> bool:
        return clients.found(lambda: write.commit([("part", GROUP, 50 * QUEUES)])) is not None

    poll_until(committed, 30)
    poll_until(lambda: len(clients.bodies()) == 50 * QUEUES, 20)


def test_trap_29_new_master_recognises_repeated_batch(group: ReplicaGroup, clients: Clients) -> None:
    with Producer(clients.mq, "exactly", idempotent=True, timeout=20.0, retries=1_000) as producer:
        ended = threading.Event()
        sent: list[bytes] = []

        def send() -> None:
            number = 0
            while not ended.is_set():
                body = b"i%d" % number
                with contextlib.suppress(RayMQError):
                    if producer.send(Message("t", body)).status is SendStatus.SEND_OK:
                        sent.append(body)
                number += 1

        thread = threading.Thread(target=send)
        thread.start()
        try:
            poll_until(lambda: len(sent) > 100, 20)
            group.kill(1)
            group.elect()
            before = len(sent)
            poll_until(lambda: len(sent) > before + 100, 30)
        finally:
            ended.set()
            thread.join()
    found = clients.bodies()
    assert set(sent) <= set(found)
    assert len(found) == len(set(found)), "a message lies there twice"


def test_traps_6_and_7_repeated_elections_without_writes(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    for designated in (1, 2, 2, 1, 2):
        group.elect(designated)
        group.await_in_sync(1, 2)
    clients.send(*numbered(5, 10))
    group.await_end(1, of=2)
    assert sorted(clients.bodies()) == numbered(0, 10)
    assert group.status(1).epoch == group.status(2).epoch == 6


@pytest.mark.long
def test_clean_restart_of_group_keeps_messages_and_offsets(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 30))
    for queue in clients.pull.queues("t"):
        clients.pull.commit(queue, 7)
    group.stop(1)
    group.stop(2)
    group.start()
    group.await_claimed(1, 2)
    group.elect()
    group.await_in_sync(1, 2)
    assert sorted(clients.bodies()) == sorted(numbered(0, 30))
    for queue in clients.asked(lambda: clients.pull.queues("t")):
        assert clients.asked(lambda q=queue: clients.pull.committed(q)) == 7


@pytest.mark.parametrize("group", [{"replicas": 3, "keepers": 3}], indirect=True)
def test_three_replicas_survive_loss_of_two_machines(group: ReplicaGroup, clients: Clients) -> None:
    sent = numbered(0, 100)
    clients.send(*sent)
    group.kill(1)
    group.wipe(1)
    first = group.elect()
    other = 5 - first
    group.await_in_sync(2, 3)
    more = numbered(100, 150)
    clients.send(*more)
    group.keepers.kill(2)
    group.kill(first)
    group.wipe(first)
    assert group.elect() == other
    clients.send(b"last")
    assert set(clients.bodies()) == {*sent, *more, b"last"}


@pytest.mark.long
@pytest.mark.parametrize("group", [{"store": {"flush": "sync"}}], indirect=True)
def test_trap_22_sync_flush_stores_on_all_in_sync_disks(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 50))
    group.kill(1)
    group.wipe(1)
    group.elect()
    clients.send(*numbered(50, 60))
    assert sorted(clients.bodies()) == sorted(numbered(0, 60))


@pytest.mark.long
def test_deleted_group_stays_deleted_on_next_masters(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 10))
    for queue in clients.pull.queues("t"):
        clients.pull.commit(queue, 1)
    with PullConsumer(clients.mq, "kept") as kept:
        kept.commit(kept.queues("t")[0], 2)
    group.await_in_sync(1, 2)
    group.kill(1)
    group.elect()  # this master has no commit of the last minute
    poll_until(lambda: clients.found(lambda: clients.admin.delete_group("pullers").deleted), 20)
    group.start(1)  # the replica learns of the deletion later
    group.await_in_sync(1, 2)
    group.kill(2)
    assert group.elect() == 1
    with Connection([group.name_server]) as mq:
        admin = Admin(mq)
        poll_until(lambda: clients.found(lambda: admin.groups() == ["kept"]), 20)
        with pytest.raises(GroupNotFound):
            admin.group_progress("pullers")
        assert "%RETRY%pullers" not in admin.topics(system=True)
        assert "%RETRY%kept" in admin.topics(system=True)
