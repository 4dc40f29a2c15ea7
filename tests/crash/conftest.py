"""Fixtures of the crash tests, which kill processes and simulate power loss; real disk syncs are skipped."""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import UnsyncedCalls
from tests.full_disk import small_file_system
from tests.replica_clients import QUEUES, Clients
from tests.replica_group import ReplicaGroup


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with replaced(UnsyncedCalls()):
        yield


#: How many descriptors a module may leave open: the interpreter's own, and those that garbage still holds.
_MAX_LEFT: Final = 8


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_open() -> Iterator[None]:
    """Check that a simulated process death closes its files as a real one does."""
    before = open_files()
    yield
    gc.collect()
    left = open_files() - before
    assert left.total() <= _MAX_LEFT, f"left open: {left}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 48 MiB; skip the test where mounting is not permitted."""
    with small_file_system(tmp_path, "48m"):
        yield tmp_path


def open_files() -> Counter[str]:
    """Count the open files of this process by name, without the descriptors that stores hold in reserve."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    del found[os.devnull]
    return found


@pytest.fixture
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReplicaGroup]:
    with ReplicaGroup(tmp_path, **getattr(request, "param", {})) as made:
        yield made


@pytest.fixture
def clients(group: ReplicaGroup) -> Iterator[Clients]:
    group.begin()
    made = Clients(group)
    with contextlib.closing(made.mq):
        made.admin.create_topic("t", queues=QUEUES)
        yield made
