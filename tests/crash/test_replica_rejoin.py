"""Test replicas that rejoin their group: a former master, one without state, an empty one, and a copy."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from raymq.actors.errors import (
    InvalidInput,
)
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.actors.wire.commands.append_commands import read_append_answer
from raymq.actors.wire.commands.replication_commands import fence_command
from tests.crash.coordinator_process import CoordinatorProcess
from tests.polling import poll_until
from tests.replica_clients import (
    QUEUES,
    Clients,
    are_alike,
    can_commit,
    expire_beginning,
    numbered,
    records,
    request_replica,
)
from tests.replica_group import GROUP, ReplicaGroup
from tests.store_replication import log_content

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


def restart_empty(group: ReplicaGroup, **changes: Any) -> None:
    """Empty the replica's directory, and let it follow again, with `changes` of its settings."""
    group.kill(2)
    group.await_in_sync(1)
    group.wipe(2)
    group.start(2, **changes)
    group.await_in_sync(1, 2)


@pytest.mark.parametrize("group", [{"mode": "async"}], indirect=True)
def test_traps_1_and_11_former_master_truncates_and_follows(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 50))
    group.await_end(2, of=1)
    clients.pull.commit(MessageQueue("t", GROUP, 0), 5)
    group.await_end(2, of=1)
    group.kill(2)
    # Async acknowledges messages that only the master has; they may be lost with it, and must not come back.
    tail = request_replica(group, 1, records(30, mark=b"tail"))
    assert read_append_answer(tail, 30)[0] is SendStatus.SEND_OK
    group.kill(1)
    group.start(2)
    group.await_claimed(2)
    assert group.elect() == 2
    clients.send(*numbered(50, 80))
    for queue_id in range(QUEUES):
        poll_until(lambda q=queue_id: can_commit(clients, q), 15)
    group.start(1)
    group.await_in_sync(1, 2)
    group.await_end(1, of=2)
    assert group.elect(1) == 1
    found = clients.bodies()
    assert set(found) == set(numbered(0, 80))
    assert clients.asked(lambda: clients.pull.committed(MessageQueue("t", GROUP, 0))) == 20
    logs = [b"".join(log_content(group.directory(number)).values()).rstrip(b"\0") for number in (1, 2)]
    assert logs[0] == logs[1]
    assert b"tail" not in logs[0]
    group.stop(1)
    group.start(1)
    assert b"tail" not in b"".join(log_content(group.directory(1)).values())


@pytest.mark.long
def test_replica_leaves_in_sync_set_before_snapshot_load(group: ReplicaGroup) -> None:
    """A replica without its state could not be elected, if the master were lost at that moment."""
    (group.directory(1) / "config").mkdir(parents=True)
    (group.directory(1) / "config" / "large.json").write_bytes(bytes(100 << 20))  # for a slow snapshot
    group.begin()
    group.pause(1)  # a paused master does not remove replicas from the in-sync set
    group.kill(2)
    numbers = group.directory(2) / "raymq" / "state_sequence"
    with numbers.open("r+b") as file:  # it died within a change
        (begun,) = struct.unpack("<q", file.read(8))
        file.seek(0)
        file.write(struct.pack("<q", begun + 1))
    group.start(2)
    group.await_claimed(2)
    assert group.state.in_sync == {1, 2}
    group.go_on(1)
    marker = group.directory(2) / "raymq" / "state_snapshot"
    poll_until(marker.exists, 20, "a snapshot begins")
    assert group.state.in_sync == {1}
    group.await_in_sync(1, 2)
    assert not marker.exists()


def test_emptied_replica_follows_log_with_expired_beginning(group: ReplicaGroup, clients: Clients) -> None:
    for _ in range(5):
        clients.send(*(each * 30_000 for each in numbered(10, 20, "m")), topic="t")
    expire_beginning(group)
    restart_empty(group)
    group.await_end(2, of=1)
    assert group.status(2).begin[0] == group.status(1).begin[0] > 0
    expected = clients.bodies()
    clients.pull.commit(MessageQueue("t", GROUP, 0), clients.pull.offsets(MessageQueue("t", GROUP, 0))[1])
    group.kill(1)
    group.wipe(1)
    assert group.elect() == 2
    assert clients.bodies() == expected
    clients.send(b"goes on")
    assert len(clients.bodies()) == len(expected) + 1


@pytest.mark.long
def test_emptied_replica_gets_ends_of_expired_queues(group: ReplicaGroup, clients: Clients) -> None:
    """After its election a queue began at 0 again, and groups' offsets in it went back."""
    clients.send(*numbered(0, 10), topic="quiet")
    queues = clients.asked(lambda: clients.pull.queues("quiet"))
    ends = [clients.pull.offsets(queue)[1] for queue in queues]
    assert sum(ends) == 10
    for queue, end in zip(queues, ends, strict=True):
        clients.pull.commit(queue, end)
    for _ in range(5):
        clients.send(*(each * 30_000 for each in numbered(10, 20, "m")), topic="t")
    expire_beginning(group)
    restart_empty(group)
    group.kill(1)
    assert group.elect() == 2
    assert [clients.asked(lambda q=queue: clients.pull.offsets(q)) for queue in queues] == [(e, e) for e in ends]
    assert [clients.asked(lambda q=queue: clients.pull.committed(q)) for queue in queues] == ends


@pytest.mark.long
@pytest.mark.parametrize("file_bytes", [1 << 17, 1 << 21], ids=["smaller", "larger"])
def test_emptied_replica_uses_log_file_size_of_master(group: ReplicaGroup, clients: Clients, file_bytes: int) -> None:
    """The setting was changed after the master's directory was made; the directory keeps its old value."""
    settings = {**group._store, "commitlog_file_bytes": file_bytes}

    clients.send(*numbered(0, 5))
    restart_empty(group, store=settings)
    clients.send(*(each * 10_000 for each in numbered(10, 60)))
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)
    expire_beginning(group)
    restart_empty(group, store=settings)
    group.kill(2)
    group.start(2, store=settings)
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)
    assert group.elect(2) == 2
    clients.send(*(each * 10_000 for each in numbered(60, 150)))
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)


def test_trap_33_copied_directory_is_refused_with_original(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    copy = group.folder / "copy"
    shutil.copytree(group.directory(2), copy)
    (copy / "raymq" / "broker.json").unlink()
    (copy / "raymq" / "broker.json.bak").unlink(missing_ok=True)
    identity = json.loads((copy / "raymq" / "replica.json").read_text())
    (copy / "raymq" / "replica.json").write_text(json.dumps({**identity, "port": 0}))
    stranger = group.started(group.spec(2, directory=str(copy)))
    original = group.addresses[2]
    try:
        group.addresses[3] = group.address_of(stranger)
        refused = poll_until(lambda: refusal_reason(group, 3), 15)
        assert original in refused
        clients.send(*numbered(5, 10))
        assert group.state.in_sync == {1, 2}
    finally:
        stranger.kill()
        stranger.communicate()


def refusal_reason(group: ReplicaGroup, number: int) -> str:
    status = group.status(number)
    return status.trouble if status.role == "refused" else ""


def test_fence_to_unreachable_epoch_is_refused(group: ReplicaGroup) -> None:
    """One such frame from any client would disable a replica for good: the epoch survives restarts."""
    group.begin()
    epoch = group.state.epoch
    for number in (1, 2):
        for wrong in (epoch + 2, (1 << 31) - 1):
            with pytest.raises(InvalidInput):
                group.run(group.pool.request(group.addresses[number], fence_command(wrong), 5.0))
        assert group.status(number).fenced <= epoch
    assert group.status(1).serves


@pytest.mark.long
def test_replaced_hung_replica_leaves_routes(group: ReplicaGroup, clients: Clients) -> None:
    """Both it and its replacement registered as the same replica every second."""
    clients.send(b"before")
    group.await_end(2, of=1)
    assert group._name_service is not None
    table = group._name_service.table

    def place() -> str | None:
        return table.member_group("test", GROUP).get(2)

    poll_until(lambda: place() == group.addresses[2], 10)
    group.pause(2)
    copy = group.folder / "copy"
    shutil.copytree(group.directory(2), copy, ignore=shutil.ignore_patterns("lock"))
    with group.started(group.spec(2, directory=str(copy), host="127.0.0.2")) as other:
        try:
            address = group.address_of(other)
            poll_until(lambda: place() == address, 20)
            group.go_on(2)
            poll_until(lambda: group.status(2).role == "refused", 20)
            poll_until(lambda: place() == address, 10)
            seen: set[str | None] = set()
            at = table._brokers[GROUP][2].last_seen
            poll_until(lambda: seen.add(place()) or table._brokers[GROUP][2].last_seen > at + 3.0, 20)
            assert seen == {address}
        finally:
            other.kill()
            other.communicate()


def test_replica_fenced_to_next_epoch_is_elected_in_it(group: ReplicaGroup, clients: Clients) -> None:
    """After two such frames the group had no master: each fence request of its election was refused."""
    clients.send(*numbered(0, 10))
    group.await_in_sync(1, 2)
    group.pause(1)
    poll_until(lambda: try_put(group, group.state.start_election()), 20)
    epoch = group.state.epoch
    group.run(group.pool.request(group.addresses[2], fence_command(epoch + 1), 5.0))
    with pytest.raises(InvalidInput):
        group.run(group.pool.request(group.addresses[2], fence_command(epoch), 5.0))
    coordinator = CoordinatorProcess(group.keepers.keepers, [GROUP], replication="sync")
    try:
        group.await_serving(2)
        assert group.state.epoch == epoch + 1
        assert set(clients.bodies()) == set(numbered(0, 10))
    finally:
        coordinator.stop()


@pytest.mark.long
def test_replica_fenced_under_live_master_follows_again(group: ReplicaGroup, clients: Clients) -> None:
    """After one such frame the replica followed no master until the master had died."""
    clients.send(*numbered(0, 10))
    group.await_in_sync(1, 2)
    epoch = group.state.epoch
    coordinator = CoordinatorProcess(group.keepers.keepers, [GROUP], replication="sync")
    try:
        group.run(group.pool.request(group.addresses[2], fence_command(epoch + 1), 5.0))
        poll_until(lambda: group.state.epoch > epoch, 20)
        group.await_in_sync(1, 2)
        clients.send(*numbered(10, 20))
        assert set(clients.bodies()) == set(numbered(0, 20))
    finally:
        coordinator.stop()


@pytest.mark.long
def test_acknowledged_messages_survive_outdated_register(group: ReplicaGroup, clients: Clients) -> None:
    """An etcd was restored from a backup: a replica from the old in-sync set was elected in an epoch that another
    one had begun.
    """
    clients.send(*numbered(0, 10))
    group.await_in_sync(1, 2)
    old = group.state
    group.kill(1)
    assert group.elect() == 2
    clients.send(*numbered(10, 30))
    group.pause(2)
    poll_until(lambda: try_put(group, replace(old, in_sync=frozenset({1}))), 20)
    group.start(1)
    group.await_claimed(1)
    group.go_on(2)
    coordinator = CoordinatorProcess(group.keepers.keepers, [GROUP], replication="sync")
    try:
        group.await_in_sync(1, 2)
        clients.send(*numbered(30, 40))
        assert set(clients.bodies()) == set(numbered(0, 40))
        assert group.state.epoch > 2
    finally:
        coordinator.stop()


def test_former_master_refuses_its_old_epoch(group: ReplicaGroup, clients: Clients) -> None:
    """A restored register let it begin an epoch that it had led before."""
    clients.send(*numbered(0, 10))
    group.await_in_sync(1, 2)
    old = group.state
    group.pause(1)
    assert group.elect(asked=[2]) == 2
    group.go_on(1)
    group.await_in_sync(1, 2)
    clients.send(*numbered(10, 20))
    group.await_end(1, of=2)
    group.pause(2)
    poll_until(lambda: try_put(group, old), 20)
    poll_until(lambda: "began before" in group.status(1).trouble, 20)
    assert (group.status(1).role, group.status(1).epoch) == ("replica", 2)


def try_put(group: ReplicaGroup, state: GroupState) -> bool:
    """Try to store the state in the register; a lease may prevent it."""
    with contextlib.suppress(RegisterError):
        return group.run(group.register.change(GROUP, group.read(), state)).version > 0
    return False
