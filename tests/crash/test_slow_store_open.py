"""Test that a slowly promoted replica answers, keeps its lease, and steps down."""

from __future__ import annotations

import time

import pytest

from raymq.actors.errors import BrokerUnavailable, NotMaster
from raymq.actors.keeper.errors import RegisterHeld
from raymq.actors.wire.commands.replication_commands import fence_command
from tests.crash.coordinator_process import CoordinatorProcess
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered, records, request_replica
from tests.replica_group import GROUP, ReplicaGroup
from tests.store_replication import log_content

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

#: The length of a lease.
LEASE_SECONDS = 2.0


def hold_open(group: ReplicaGroup, number: int) -> None:
    """Kill the master; hold its successor's promotion until `release`."""
    group.tell(number, "hold failpoint leader.before_tables")
    group.kill(1)
    group.elect_without_wait(number)
    group.await_hold(number)


def is_master(group: ReplicaGroup, number: int) -> bool:
    status = group.status(number)
    return status.serves or status.role == "master"


def test_opening_master_answers_and_keeps_its_lease(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 50))
    hold_open(group, 2)
    until = time.monotonic() + 1.5 * LEASE_SECONDS
    now = group.read()
    while time.monotonic() < until:
        status = group.status(2, 1.0)
        assert (status.role, status.serves, status.reaches_keepers) == ("opening", False, True)
        with pytest.raises(NotMaster):
            request_replica(group, 2, records(1))
        with pytest.raises(RegisterHeld):
            group.run(group.register.change(GROUP, now, group.state.start_election()))
    group.tell(2, "release")
    group.await_serving(2)
    clients.send(*numbered(50, 60))
    assert set(clients.bodies()) == set(numbered(0, 60))


@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
@pytest.mark.long
def test_master_fenced_while_opening_never_serves(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 50))
    hold_open(group, 2)
    with pytest.raises(BrokerUnavailable, match="is stepping down"):
        request_replica(group, 2, fence_command(group.state.epoch + 1), 1.0)
    assert group.elect(asked=[2, 3]) == 3
    clients.send(*numbered(50, 60))
    assert not group.status(2).serves
    group.tell(2, "release")
    poll_until(lambda: not is_master(group, 2) and group.status(2).role == "replica", 20)
    group.await_in_sync(2, 3)
    group.start(1)
    group.await_in_sync(1, 2, 3)
    clients.send(*numbered(60, 70))
    assert set(clients.bodies()) == set(numbered(0, 70))
    group.await_end(2, of=3)
    logs = [b"".join(log_content(group.directory(number)).values()).rstrip(b"\0") for number in (2, 3)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
def test_master_that_loses_lease_while_opening_never_serves(group: ReplicaGroup, clients: Clients) -> None:
    """The replica gets no message about it, as if its machine were disconnected."""
    clients.send(*numbered(0, 20))
    hold_open(group, 2)
    group.pause(2)
    assert group.elect(asked=[3]) == 3
    clients.send(*numbered(20, 30))
    group.go_on(2)
    group.tell(2, "release")
    poll_until(lambda: group.status(2).role == "replica", 20)
    group.await_in_sync(2, 3)
    assert set(clients.bodies()) == set(numbered(0, 30))


@pytest.mark.long
def test_coordinator_waits_for_only_in_sync_replica(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 20))
    group.kill(1)
    group.elect()
    group.await_in_sync(2)
    group.stop(2)
    group.start(2)
    group.await_claimed(2)
    group.tell(2, "hold failpoint leader.before_tables")
    coordinator = CoordinatorProcess(group.keepers.keepers, [GROUP], replication="sync")
    try:
        group.await_hold(2)
        epoch = group.state.epoch
        until = time.monotonic() + 2.5 * LEASE_SECONDS  # a silent master is given up after 3 s
        while time.monotonic() < until:
            assert group.state.epoch == epoch
        group.tell(2, "release")
        group.await_serving(2)
        assert group.state.epoch == epoch
    finally:
        coordinator.stop()
    assert set(clients.bodies()) == set(numbered(0, 20))
