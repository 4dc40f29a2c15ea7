"""Test that changes by a delayed thread of a former master are no changes of the current master."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from raymq.actors.errors import RayMQError
from raymq.actors.wire.commands.staged_write_commands import stage_command
from raymq.storage.store import Store
from tests.polling import poll_until
from tests.replica_clients import Clients, are_alike, numbered, request_replica
from tests.replica_group import ReplicaGroup
from tests.store_records import make_record

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


@contextlib.contextmanager
def hold_staged_write(group: ReplicaGroup) -> Iterator[None]:
    """Stage rows on replica 1, which stops before it records them."""
    row = make_record(b"late", topic="t")
    chunk = stage_command("late", "part", 0, ("t", 0), row, np.array([len(row)], np.int32), group.name)

    def stage() -> None:
        with contextlib.suppress(RayMQError):
            request_replica(group, 1, chunk)

    group.tell(1, "hold failpoint staged.before_chunk")
    thread = threading.Thread(target=stage)
    thread.start()
    group.await_hold(1)
    try:
        yield
    finally:
        thread.join()


def has_late_chunk(group: ReplicaGroup, replica: int) -> bool:
    """Return True if a replica's table of staged writes has the chunk."""
    with Store.open(group.directory(replica), read_only=True) as store:
        return store.tables.staged.is_here("late")


def test_late_write_of_a_former_leadership_is_refused(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 10))
    with hold_staged_write(group):
        assert group.elect(2) == 2
        group.await_in_sync(1, 2)
        clients.send(*numbered(10, 20))
        poll_until(lambda: are_alike(group), 20)
        group.tell(1, "release")
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)
    assert group.elect(1) == 1
    clients.send(*numbered(20, 30))
    assert set(clients.bodies()) == set(numbered(0, 30))
    poll_until(lambda: are_alike(group), 20)
    assert not has_late_chunk(group, 1)
    assert not has_late_chunk(group, 2)


def test_reelected_master_has_no_write_between_leaderships(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 10))
    elected: list[int] = []
    electing = threading.Thread(target=lambda: elected.append(group.elect(1)))
    with hold_staged_write(group):
        electing.start()
        poll_until(lambda: group.status(1).role == "replica", 20)
        group.tell(1, "release")
        electing.join()
    assert elected == [1]
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)
    clients.send(*numbered(10, 20))
    assert set(clients.bodies()) == set(numbered(0, 20))
    assert not has_late_chunk(group, 1)
