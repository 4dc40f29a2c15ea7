"""Test that a replica after a power loss knows whether events are missing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.storage import checkpointer, store_parts
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.store import Store
from raymq.storage.timers import timer_log
from tests.crash.power_loss import Disk
from tests.crash.power_loss_broker import CONFIG
from tests.crash.test_state_prefixes import RandomMaster, opened_master
from tests.state_journals import wait_for_compaction
from tests.state_shipping import StateShipper, content_of, copy_state, record_contents, ship_all, state_of
from tests.store_replication import log_content, read_bodies

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 3)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("luck", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_replica_has_prefix_of_events_after_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, luck: float
) -> None:
    boot = ["one"]
    for module in (checkpointer, store_parts):
        monkeypatch.setattr(module, "boot_id", lambda: boot[0])
    random_ = random.Random(seed)
    (tmp_path / "replica").mkdir()
    disk = Disk(tmp_path / "replica")
    worker = RandomMaster(tmp_path / "master", seed)
    contents = record_contents(worker.store)
    with replaced(disk):
        copy_state(worker.store, tmp_path / "replica")
        synced = copied = worker.store.journal.last
        follower = Store.open(tmp_path / "replica", CONFIG, is_replica=True)
        shipping = StateShipper(worker.store, follower)
        for _ in range(80):
            worker.work()
            shipping.some(random_)
            if random_.random() < 0.1:
                follower.sync_state()
                synced = follower.journal.last
        wait_for_compaction(follower)
        disk.after_power_loss(tmp_path / "found", random_, luck)
        follower._flusher.stop()
        follower._abandon()
        assert follower.journal.last > copied
    disk.close()

    boot[0] = "another"
    shutil.copytree(tmp_path / "found", tmp_path / "master too")
    # It can become the master if there is no other replica, even with gaps.
    with opened_master(tmp_path / "master too", is_running=seed % 2 == 0, memory_lost=True) as store:
        core = BrokerCore("broker-a", store)
        core.topics.create("later", 1)
        core.timers.close()
    with Store.open(tmp_path / "found", CONFIG, is_replica=True) as found:
        assert not (found.journal.is_lossy and luck == 0.0)
        if not found.journal.is_lossy:
            assert synced <= found.journal.last <= follower.journal.last
            assert content_of(found.tables) == contents[found.journal.last]
        is_lossy = found.journal.is_lossy
    if is_lossy:  # then it takes a copy where there is a master
        copy_state(worker.store, tmp_path / "found")
    with Store.open(tmp_path / "found", CONFIG, is_replica=True) as found:
        ship_all(worker.store, found)
        assert content_of(found.tables) == content_of(worker.store.tables)
        assert read_bodies(found) == read_bodies(worker.store)
    worker.close()
    assert state_of(tmp_path / "found") == state_of(tmp_path / "master")
    assert log_content(tmp_path / "found") == log_content(tmp_path / "master")


def test_synced_state_survives_power_loss(tmp_path: Path) -> None:
    (tmp_path / "replica").mkdir()
    disk = Disk(tmp_path / "replica")
    with replaced(disk):
        worker = RandomMaster(tmp_path / "master", 3)
        copy_state(worker.store, tmp_path / "replica")
        follower = Store.open(tmp_path / "replica", CONFIG, is_replica=True)
        for number in range(3):
            for _ in range(20):
                worker.work()
            ship_all(worker.store, follower)
            expected = state_of(tmp_path / "master")
            follower.sync_state()
            disk.after_power_loss(tmp_path / f"found{number}", random.Random(number), 0.0)
            assert state_of(tmp_path / f"found{number}") == expected
        follower.close()
        worker.close()
    disk.close()
