"""Test that a commit cut short by a clean stop survives a power loss."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raymq.storage import checkpointer, store_parts
from raymq.storage.files.file_calls import replaced
from tests import staged_rows
from tests.crash.power_loss import Disk
from tests.unit.actors.bench import Bench
from tests.unit.actors.test_staged_commit_many_parts import row, stage


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_power_loss_after_stop_stores_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: float
) -> None:
    boots = ["first"]
    for module in (store_parts, checkpointer):
        monkeypatch.setattr(module, "boot_id", lambda: boots[-1])
    directory, found = tmp_path / "stopped", tmp_path / "found"
    directory.mkdir()
    disk = Disk(directory)
    with replaced(disk):
        bench = Bench(directory)
        bench.core.topics.create("t", 1)
        for number in range(4):
            stage(bench, "part", [row(b"%d.%d" % (number, n)) for n in range(3)], number)
        committing = staged_rows.commit(bench.core.staging, "tx", ["part"])
        assert next(committing) + next(committing) == 6
        bench.core.timers.close()
        bench.store.close()
        disk.after_power_loss(found, random.Random(1), luck)
        disk.close()
    boots.append("second")
    bench = Bench(found)
    assert bench.store.recovery.clean
    assert bench.bodies("t") == []
    assert sum(staged_rows.commit(bench.core.staging, "tx", ["part"])) >= 6
    bench.store.flush()
    staged_rows.close(bench.core.staging, "tx")
    assert bench.bodies("t") == [b"%d.%d" % (number, n) for number in range(4) for n in range(3)]
    bench.store.close()
