"""Crash tests kill processes and simulate the loss of power: none of them needs a real disk to be waited for."""

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


#: What a module may leave open: the interpreter's own, and what garbage holds a little longer.
_MAX_LEFT: Final = 8


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_open() -> Iterator[None]:
    """A death that is simulated within this process lets go of its files, as a real one does."""
    before = open_files()
    yield
    gc.collect()
    left = open_files() - before
    assert left.total() <= _MAX_LEFT, f"left open: {left}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB; skipped where none may be mounted."""
    with small_file_system(tmp_path, "48m"):
        yield tmp_path


def open_files() -> Counter[str]:
    """What this process has open, by name; without the descriptors that stores keep in reserve."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
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
