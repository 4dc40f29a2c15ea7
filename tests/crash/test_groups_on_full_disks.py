"""A group with disks that another program has filled to the last byte: who has the messages is elected all the same."""

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
    """Two replicas, each with a disk of its own."""
    made = ReplicaGroup(tmp_path)
    with contextlib.ExitStack() as disks:
        for number in (1, 2):
            made.directory(number).mkdir()
            disks.enter_context(small_file_system(made.directory(number), "60m"))
        with made:
            yield made


def test_a_replica_whose_disk_is_full_succeeds_its_master(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 20))
    group.await_end(2, of=1)
    group.pause(1)  # what changes by itself would put a replica without room out of the set
    filler = fill(group.directory(2))
    group.kill(1)
    assert group.elect() == 2
    assert set(clients.bodies()) == set(numbered(0, 20))
    filler.unlink()
    poll_until(lambda: takes(clients, b"again"), 60, "it takes messages again")


def takes(clients: Clients, body: bytes) -> bool:
    """Whether a message is acknowledged."""
    with contextlib.suppress(Exception):
        clients.send(body)
        return True
    return False
