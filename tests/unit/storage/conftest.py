"""Fixtures for tests of the storage package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.storage.store import Store
from raymq.storage.timers import timer_log
from tests import golden_stores as golden
from tests.golden_stores import Answers

MODES = [
    pytest.param((name, read_only), id=f"{name}-{'read' if read_only else 'write'}")
    for name in golden.NAMES
    for read_only in (False, True)
]


@pytest.fixture(scope="module", params=MODES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Answers]]:
    """Open each golden directory for writing and read-only, with RocketMQ's answers."""
    name, read_only = request.param
    directory = golden.unpack(name, tmp_path_factory.mktemp("golden"))
    with Store.open(directory, golden.config(name), read_only) as store:
        yield store, golden.answers(name)


@pytest.fixture
def runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each checkpoint write a run of the entries since the last one."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
