"""Who comes back to its group: a former master, one without its state or without anything, a copy of one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import struct
from typing import Any

import pytest

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


def begin_anew(group: ReplicaGroup, **changes: Any) -> None:
    """The replica's directory is empty, and it follows again, with `changes` of its settings."""
    group.kill(2)
    group.await_in_sync(1)
    group.wipe(2)
    group.start(2, **changes)
    group.await_in_sync(1, 2)


@pytest.mark.parametrize("group", [{"mode": "async"}], indirect=True)
def test_traps_1_and_11_a_former_master_is_cut_and_follows(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 50))
    group.await_end(2, of=1)
    clients.pull.commit(MessageQueue("t", GROUP, 0), 5)
    group.await_end(2, of=1)
    group.kill(2)
    # Async acknowledges what only the master has; that may be lost with it, and must not come back.
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
def test_a_replica_leaves_the_set_before_it_drops_its_state_for_a_snapshot(group: ReplicaGroup) -> None:
    """Without its state nobody could be elected with its log, if the master were lost in that moment."""
    (group.directory(1) / "config").mkdir(parents=True)
    (group.directory(1) / "config" / "large.json").write_bytes(bytes(100 << 20))  # so that it takes a while
    group.begin()
    group.pause(1)  # who was stopped itself blames nobody for having been away
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


def test_an_emptied_replica_follows_from_nothing_also_where_the_masters_log_begins_late(
    group: ReplicaGroup, clients: Clients
) -> None:
    for _ in range(5):
        clients.send(*(each * 30_000 for each in numbered(10, 20, "m")), topic="t")
    expire_beginning(group)
    begin_anew(group)
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
def test_an_emptied_replica_knows_what_queues_have_come_to_whose_messages_have_expired(
    group: ReplicaGroup, clients: Clients
) -> None:
    """Once it was elected, a queue began at 0 again, and groups' offsets in it went back."""
    clients.send(*numbered(0, 10), topic="quiet")
    queues = clients.asked(lambda: clients.pull.queues("quiet"))
    ends = [clients.pull.offsets(queue)[1] for queue in queues]
    assert sum(ends) == 10
    for queue, end in zip(queues, ends, strict=True):
        clients.pull.commit(queue, end)
    for _ in range(5):
        clients.send(*(each * 30_000 for each in numbered(10, 20, "m")), topic="t")
    expire_beginning(group)
    begin_anew(group)
    group.kill(1)
    assert group.elect() == 2
    assert [clients.asked(lambda q=queue: clients.pull.offsets(q)) for queue in queues] == [(e, e) for e in ends]
    assert [clients.asked(lambda q=queue: clients.pull.committed(q)) for queue in queues] == ends


@pytest.mark.long
@pytest.mark.parametrize("file_bytes", [1 << 17, 1 << 21], ids=["smaller", "larger"])
def test_an_emptied_replica_has_log_files_of_its_masters_size(
    group: ReplicaGroup, clients: Clients, file_bytes: int
) -> None:
    """The setting was changed since the master's directory was made, which keeps what it was made with."""
    settings = {**group._store, "commitlog_file_bytes": file_bytes}

    clients.send(*numbered(0, 5))
    begin_anew(group, store=settings)
    clients.send(*(each * 10_000 for each in numbered(10, 60)))
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)
    expire_beginning(group)
    begin_anew(group, store=settings)
    group.kill(2)
    group.start(2, store=settings)
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)
    assert group.elect(2) == 2
    clients.send(*(each * 10_000 for each in numbered(60, 150)))
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)


def test_trap_33_a_copied_directory_is_refused_by_name(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    copy = group.folder / "copy"
    shutil.copytree(group.directory(2), copy)
    (copy / "raymq" / "broker.json").unlink()
    (copy / "raymq" / "broker.json.bak").unlink(missing_ok=True)
    told = json.loads((copy / "raymq" / "replica.json").read_text())
    (copy / "raymq" / "replica.json").write_text(json.dumps({**told, "port": 0}))
    stranger = group.started(group.spec(2, directory=str(copy)))
    original = group.addresses[2]
    try:
        group.addresses[3] = group.address_of(stranger)
        refused = poll_until(lambda: refusal(group, 3), 15)
        assert original in refused
        clients.send(*numbered(5, 10))
        assert group.state.in_sync == {1, 2}
    finally:
        stranger.kill()
        stranger.communicate()


def refusal(group: ReplicaGroup, number: int) -> str:
    status = group.status(number)
    return status.trouble if status.role == "refused" else ""


def test_nobody_is_sealed_to_an_epoch_that_will_not_come(group: ReplicaGroup) -> None:
    """One such frame, of anybody, would take a replica away for good: it is remembered over restarts."""
    group.begin()
    epoch = group.state.epoch
    for number in (1, 2):
        for wrong in (epoch + 2, (1 << 31) - 1):
            with pytest.raises(InvalidInput):
                group.run(group.pool.request(group.addresses[number], fence_command(wrong), 5.0))
        assert group.status(number).fenced <= epoch
    assert group.status(1).serves


@pytest.mark.long
def test_a_replica_that_was_replaced_while_it_hung_leaves_its_place_in_the_routes(
    group: ReplicaGroup, clients: Clients
) -> None:
    """It told the name server every second that it is that replica, and so did the one in its place."""
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


def test_who_was_sealed_to_the_next_epoch_is_elected_in_it(group: ReplicaGroup, clients: Clients) -> None:
    """Two frames, of anybody, and the group had no master any more: each seal of its election was refused."""
    clients.send(*numbered(0, 10))
    group.await_in_sync(1, 2)
    group.pause(1)
    poll_until(lambda: is_put(group, group.state.start_election()), 20)
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
def test_who_was_sealed_to_the_next_epoch_while_its_master_serves_follows_again(
    group: ReplicaGroup, clients: Clients
) -> None:
    """One frame, of anybody, and it followed nobody until the master had died."""
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
def test_with_a_register_that_is_older_than_the_group_nothing_acknowledged_is_lost(
    group: ReplicaGroup, clients: Clients
) -> None:
    """Of an etcd that was restored from a backup: who was in sync by then was elected with what it had, in an epoch
    that another one had begun.
    """
    clients.send(*numbered(0, 10))
    group.await_in_sync(1, 2)
    old = group.state
    group.kill(1)
    assert group.elect() == 2
    clients.send(*numbered(10, 30))
    group.pause(2)
    poll_until(lambda: is_put(group, dataclasses.replace(old, in_sync=frozenset({1}))), 20)
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


def test_nobody_is_master_again_in_an_epoch_that_another_one_has_followed(
    group: ReplicaGroup, clients: Clients
) -> None:
    """By a register that was restored it was: it had tried that epoch before."""
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
    poll_until(lambda: is_put(group, old), 20)
    poll_until(lambda: "began before" in group.status(1).trouble, 20)
    assert (group.status(1).role, group.status(1).epoch) == ("replica", 2)


def is_put(group: ReplicaGroup, state: GroupState) -> bool:
    """Whether the register has it by now: a lease may be in the way."""
    with contextlib.suppress(RegisterError):
        return group.run(group.register.change(GROUP, group.read(), state)).version > 0
    return False
