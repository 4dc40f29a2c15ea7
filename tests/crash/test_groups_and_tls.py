"""Test several broker groups with the same keepers, and a group whose sockets all use TLS."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame
from raymq.actors.errors import RayMQError
from raymq.actors.protocol import SendStatus
from raymq.client import Message
from tests.crash.coordinator_process import CoordinatorProcess
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered, records, request_replica
from tests.replica_group import ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.soak, pytest.mark.timeout(300)]


def test_groups_fail_over_independently(tmp_path: Path) -> None:
    with (
        ReplicaGroup(tmp_path, keepers=3) as one,
        ReplicaGroup(tmp_path, name="broker-b", shared_with=one) as other,
    ):
        groups = {one.name: one, other.name: other}
        coordinator = CoordinatorProcess(one.keepers.keepers, list(groups), replication="sync")
        try:
            for group in groups.values():
                group.start()
                group.await_in_sync(1, 2)
            clients = Clients(one)
            clients.admin.create_topic("t", queues=2)
            sent: dict[str, set[bytes]] = {name: set() for name in groups}
            ended = threading.Event()

            def send() -> None:
                number = 0
                while not ended.is_set():
                    number += 1
                    body = b"m%d" % number
                    try:
                        made = clients.producer.send(Message("t", body))
                    except RayMQError:
                        continue
                    if made.status is SendStatus.SEND_OK:
                        sent[made.queue.broker].add(body)

            sending = threading.Thread(target=send)
            sending.start()
            try:
                poll_until(lambda: all(len(each) > 20 for each in sent.values()), 30)
                epoch, master = other.state.epoch, one.state.master
                assert master is not None
                one.kill(master)
                poll_until(lambda: one.state.master not in {None, master}, 20)
                before = {name: len(each) for name, each in sent.items()}
                poll_until(lambda: all(len(sent[name]) > before[name] + 20 for name in groups), 30)
                assert other.state.epoch == epoch, "one group's election is nothing to another one"
                master = other.state.master
                assert master is not None
                one.keepers.kill(1)
                other.kill(master)
                poll_until(lambda: other.state.master not in {None, master}, 30)
                before = {name: len(each) for name, each in sent.items()}
                poll_until(lambda: all(len(sent[name]) > before[name] + 20 for name in groups), 30)
            finally:
                ended.set()
                sending.join()
            assert set.union(*sent.values()) <= set(clients.bodies())
            clients.mq.close()
        finally:
            coordinator.stop()


@pytest.mark.parametrize("group", [{"tls": True}], indirect=True)
def test_replication_works_over_tls(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*(b"%d" % number * 10_000 for number in range(10, 60)))
    expected = clients.bodies()
    group.await_end(2, of=1)
    group.kill(1)
    group.wipe(1)
    assert group.elect() == 2
    group.start(1)
    group.await_in_sync(1, 2)  # a snapshot, and the log
    assert group.elect(1) == 1
    clients.send(*numbered(0, 10))
    assert set(clients.bodies()) == {*expected, *numbered(0, 10)}
    group.await_in_sync(1, 2)


@pytest.mark.parametrize("group", [{"tls": True}], indirect=True)
def test_plaintext_connection_is_not_accepted_as_replica(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    host, _, port = group.status(1).replication_address.rpartition(":")
    hello = ReplicationFrame(FrameKind.HELLO, group.state.epoch, body=b"forged").encode()
    with socket.create_connection((host, int(port)), 5) as plain:
        plain.settimeout(20)
        plain.sendall(hello)
        answer = b""
        try:
            while part := plain.recv(1 << 16):
                answer += part
        except ConnectionError:
            pass
    assert b"master" not in answer
    assert bytes([FrameKind.REFUSED]) not in answer[:4]
    request_replica(group, 1, records(1))
    group.await_in_sync(1, 2)
