"""Crash tests kill processes and simulate the loss of power: none of them needs a real disk to be waited for."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Final

import pytest

from raymq.storage.file_calls import replaced
from tests.faulty_calls import UnsyncedCalls


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with replaced(UnsyncedCalls()):
        yield


#: What a module may leave open: the interpreter's own, and what garbage holds a little longer.
_MOST_LEFT: Final = 8


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_open() -> Iterator[None]:
    """A death that is simulated within this process lets go of its files, as a real one does."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    left = len(os.listdir("/proc/self/fd")) - before
    assert left <= _MOST_LEFT, f"{left} descriptors more than before"
