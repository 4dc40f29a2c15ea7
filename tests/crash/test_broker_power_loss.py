"""Test that restored progress is clamped to the log after a power loss; see powerless_broker.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raymq.storage import checkpointer
from raymq.storage.journal import state_journal
from tests.crash.power_loss_broker import PowerLossBroker

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)


@pytest.fixture(autouse=True)
def another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each open of the store look like one after a reboot."""
    monkeypatch.setattr(checkpointer, "boot_id", lambda: "an earlier boot")


def run_lives(root: Path, seed: int, *, sync: bool, works: int) -> None:
    """Run several lives of a broker; the last one must deliver all that was acknowledged in it."""
    random.seed(seed)  # pop takes queues in random order
    broker = PowerLossBroker(root, random.Random(seed), sync=sync)
    broker.live(works)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_messages_are_delivered_after_power_loss(tmp_path: Path, seed: int, sync: bool) -> None:
    """Guard against faults 13.9 and 13.10, and check everything else that recovery restores."""
    run_lives(tmp_path, seed, sync=sync, works=40)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_acknowledged_messages_survive_many_power_losses(tmp_path: Path, first: int, sync: bool) -> None:
    for seed in range(first, first + 50):
        (tmp_path / str(seed)).mkdir()
        run_lives(tmp_path / str(seed), seed, sync=sync, works=60)
