"""Swap master and replica repeatedly, kill them in between, and check that nothing is lost.

See swapping_broker.py.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from raymq.actors.broker.replication.reconciliation import ContinueFrom, InstallSnapshot, TruncateTo
from raymq.storage.journal import state_journal
from raymq.storage.timers import timer_log
from tests.crash.swapping_broker import SwappingBroker

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 5)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # threads end with their simulated process


@pytest.mark.long
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_role_swaps_lose_no_acknowledged_message(tmp_path: Path, sync: bool) -> None:
    kills = compared = 0
    verdicts = set[type]()
    for seed in range(6):
        random.seed(seed)  # pop takes queues in random order
        root = tmp_path / str(seed)
        root.mkdir()
        broker = SwappingBroker(root, random.Random(seed), sync=sync)
        try:
            broker.live(works=40)
        finally:
            broker.close()
        kills, compared = kills + broker.kills, compared + broker.compared
        verdicts.update(broker.verdicts)
    assert kills >= 6
    assert compared >= 3
    assert verdicts >= {ContinueFrom, InstallSnapshot}
    assert verdicts <= {ContinueFrom, InstallSnapshot, TruncateTo}
