"""Test that an acknowledged stream plan survives a power loss, so that a repeated batch reads the same messages."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.stream_plan_store import StreamPlanStore
from tests.crash.power_loss import Disk
from tests.state_journals import open_table

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("seed", range(8))
def test_acknowledged_plan_survives_power_loss(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk, chance = Disk(root), random.Random(seed)
    answered: dict[int, bytes] = {}
    losses = 0

    def lose_power() -> None:
        nonlocal losses
        losses += 1
        target = tmp_path / str(losses)
        disk.after_power_loss(target, chance, chance.random())
        kept = dict(open_table(target, StreamPlanStore(), writable=False).kept("agg", "query"))
        if answered:
            newest = max(answered)
            assert kept[newest] == answered[newest]
            assert kept.keys() <= {newest - 1, newest, newest + 1}

    disk.before_sync = lose_power
    with contextlib.closing(disk), replaced(disk):
        plans = open_table(root, StreamPlanStore())
        for batch in range(4):
            answered[batch] = plans.put("agg", "query", batch, chance.randbytes(chance.choice((10, 2_000))))
            lose_power()
    assert losses > 8
