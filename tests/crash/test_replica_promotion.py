"""Test that a replica with any prefix of the stream becomes master.

See failover_broker.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raymq.storage.journal import state_journal
from raymq.storage.timers import timer_log
from tests.crash.failover_broker import FailoverBroker

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 5)


def run_lives(root: Path, seed: int, *, sync: bool, works: int) -> int:
    """Run several masters, each the replica of the one before; return how often files were compared and equal."""
    random.seed(seed)  # pop takes queues in random order
    broker = FailoverBroker(root, random.Random(seed), sync=sync)
    broker.live(works)
    broker.close()
    return broker.compared


@pytest.mark.parametrize("sync", [True, pytest.param(False, marks=pytest.mark.long)], ids=["sync", "async"])
def test_promoted_replica_has_all_shipped_state(tmp_path: Path, sync: bool) -> None:
    compared = 0
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        compared += run_lives(tmp_path / str(seed), seed, sync=sync, works=40)
    assert compared


@pytest.mark.sweep(every=5)
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_promoted_replicas_keep_state_over_many_failovers(tmp_path: Path, first: int, sync: bool) -> None:
    for seed in range(first, first + 50):
        (tmp_path / str(seed)).mkdir()
        run_lives(tmp_path / str(seed), seed, sync=sync, works=60)
