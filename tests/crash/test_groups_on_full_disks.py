"""Test that a replica with a full disk, filled by another program, is elected if it has the messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full_disk import fill, small_file_system
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered
from tests.replica_group import ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    """Yield two replicas, each with a disk of its own."""
    made = ReplicaGroup(tmp_path)
    with contextlib.ExitStack() as disks:
        for number in (1, 2):
            made.directory(number).mkdir()
            disks.enter_context(small_file_system(made.directory(number), "60m"))
        with made:
            yield made


def test_replica_with_full_disk_is_elected(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 20))
    group.await_end(2, of=1)
    group.pause(1)  # the running master would remove a replica without space from the in-sync set
    filler = fill(group.directory(2))
    group.kill(1)
    assert group.elect() == 2
    assert set(clients.bodies()) == set(numbered(0, 20))
    filler.unlink()
    poll_until(lambda: is_acknowledged(clients, b"again"), 60, "it takes messages again")


def is_acknowledged(clients: Clients, body: bytes) -> bool:
    """Check whether a message is acknowledged."""
    with contextlib.suppress(Exception):
        clients.send(body)
        return True
    return False
