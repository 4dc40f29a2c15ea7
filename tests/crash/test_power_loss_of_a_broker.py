"""What a broker restores after a loss of power is clamped to what the log still has; see powerless_broker.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raymq.storage import checkpointer
from raymq.storage.tables import consumer_offset_store, in_flight_messages
from tests.crash.powerless_broker import PowerlessBroker

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rewritten_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offset_store, "_FOLD_BYTES", 800)
    monkeypatch.setattr(in_flight_messages, "_REWRITE_BYTES", 400)


@pytest.fixture(autouse=True)
def another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store writes down of its boot is not the boot's in which it is opened again."""
    monkeypatch.setattr(checkpointer, "boot_id", lambda: "an earlier boot")


def lives(root: Path, seed: int, *, sync: bool, works: int) -> None:
    """Some lives of a broker; what is acknowledged in the last one must come, whatever those before it left."""
    random.seed(seed)  # pop takes queues in any order
    broker = PowerlessBroker(root, random.Random(seed), sync=sync)
    broker.live(works)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_acknowledged_after_a_loss_of_power_is_delivered(tmp_path: Path, seed: int, sync: bool) -> None:
    """Faults 13.9 and 13.10, and all else that recovery restores."""
    lives(tmp_path, seed, sync=sync, works=40)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_many_losses_of_power(tmp_path: Path, first: int, sync: bool) -> None:
    for seed in range(first, first + 50):
        (tmp_path / str(seed)).mkdir()
        lives(tmp_path / str(seed), seed, sync=sync, works=60)
