"""Test a replica's directory after a power loss: it can be opened, and its state counts as incomplete."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.storage import checkpointer
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.state import sequence_file
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from raymq.storage.timers import timer_log
from tests.crash.power_loss import Disk
from tests.crash.power_loss_broker import CONFIG
from tests.crash.test_state_prefixes import RandomMaster
from tests.state_shipping import StateShipper, state_of, take_snapshot

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 3)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("luck", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_replica_takes_snapshot_after_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, luck: float
) -> None:
    boot = ["one"]
    monkeypatch.setattr(checkpointer, "boot_id", lambda: boot[0])
    monkeypatch.setattr(sequence_file, "boot_id", lambda: boot[0])
    random_ = random.Random(seed)
    (tmp_path / "replica").mkdir()
    disk = Disk(tmp_path / "replica")
    with replaced(disk):
        worker = RandomMaster(tmp_path / "master", seed)
        replica = StateReplica(tmp_path / "replica")
        take_snapshot(worker.recorder, replica)
        follower = Store.open(tmp_path / "replica", CONFIG, is_replica=True)
        shipping = StateShipper(worker.store, worker.recorder, follower, replica)
        for _ in range(80):
            worker.work()
            shipping.some(random_)
            if random_.random() < 0.1:
                replica.sync()
        disk.after_power_loss(tmp_path / "found", random_, luck)
        follower._flusher.stop()
        follower._abandon()
        assert replica.last > worker.moments[0].sequence
        replica.close()
        worker.close()
    disk.close()

    boot[0] = "another"
    found = StateReplica(tmp_path / "found")
    assert found.last == 0, "it takes a snapshot where there is a master"
    found.close()
    with Store.open(tmp_path / "found", CONFIG) as store:  # and it can become master if there is no other replica
        core = BrokerCore("broker-a", store)
        core.topics.create("later", 1)
        core.timers.close()


def test_synced_state_survives_power_loss(tmp_path: Path) -> None:
    (tmp_path / "replica").mkdir()
    disk = Disk(tmp_path / "replica")
    with replaced(disk):
        worker = RandomMaster(tmp_path / "master", 3)
        replica = StateReplica(tmp_path / "replica")
        take_snapshot(worker.recorder, replica)
        for number in range(3):
            for _ in range(20):
                worker.work()
            while changes := worker.recorder.after(replica.last):
                replica.apply(changes)
            expected = state_of(tmp_path / "master")
            replica.sync()
            disk.after_power_loss(tmp_path / f"found{number}", random.Random(number), 0.0)
            assert state_of(tmp_path / f"found{number}") == expected
        replica.close()
        worker.close()
    disk.close()
