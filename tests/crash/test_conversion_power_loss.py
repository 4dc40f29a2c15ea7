"""Test that power losses within the conversion of format 2 lose no table."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.storage import checkpointer, failpoints, store_parts
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests.crash.power_loss import Disk
from tests.unit.storage.journal.test_format_2 import CONFIG, content_of, former_files, written

pytestmark = pytest.mark.crash

STEPS = [
    *("format.before_snapshot", "state.before_snapshot", "state.after_snapshot"),
    *(f"format.before_removal:{count}" for count in (1, 4, 8)),
    *("open.before_recovery", "open.before_checkpoint"),
]


class Killed(BaseException):
    """Simulate a kill of the process."""


@pytest.fixture(autouse=True)
def disarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (store_parts, checkpointer):
        monkeypatch.setattr(module, "boot_id", lambda: "another")
    yield
    failpoints.arm("")


def kill() -> None:
    raise Killed


def without_epoch(content: dict[str, Any]) -> dict[str, Any]:
    """Return the tables but for the newest epoch: each loss of power begins one."""
    (_, election, _) = content["epochs.json"]
    return content | {"epochs.json": election}


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("step", STEPS)
def test_power_loss_during_conversion_loses_no_table(repository: Path, tmp_path: Path, step: str, luck: float) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with tarfile.open(repository / "tests" / "fixtures" / "format_2" / "killed.tar.xz") as archive:
        archive.extractall(before)
    expected = without_epoch(written(before))
    disk = Disk(before)
    disk.remember_all()
    failpoints.arm(step, kill)
    with replaced(disk), pytest.raises(Killed):
        Store.open(before, CONFIG)
    failpoints.arm("")
    disk.after_power_loss(after, random.Random(step), luck)
    disk.close()
    for _ in range(2):
        with Store.open(after, CONFIG) as store:
            assert without_epoch(content_of(store)) == expected
        assert former_files(after) == []
