"""Crash tests kill processes and simulate the loss of power: none of them needs a real disk to be waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.storage.file_calls import replaced
from tests.faulty_calls import UnsyncedCalls


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with replaced(UnsyncedCalls()):
        yield
