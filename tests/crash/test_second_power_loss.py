"""Test that what a start truncates after a power loss stays truncated after another one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import store_parts
from raymq.storage.config import StoreConfig
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests.crash.power_loss import Disk
from tests.crash.test_power_loss import CONFIG
from tests.store_records import append, make_record, write_entries

pytestmark = pytest.mark.crash


def queue_end(store: Store, queue_id: int) -> int:
    return store.max_offset("orders", queue_id) if queue_id in store.queues("orders") else 0


@pytest.mark.parametrize("later", [1, 30], ids=["a message later", "many messages later"])
@pytest.mark.parametrize("sure", [0, 5], ids=["all of a queue", "the end of a queue"])
def test_truncated_queue_entries_stay_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sure: int, later: int
) -> None:
    """Such entries would point into records of other queues, and readers would get these as messages of this one."""
    boots = [0]
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: f"boot {boots[0]}")
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    with Store.open(first, CONFIG) as store:
        append(store, make_record(b"other", queue_id=1), *[make_record(b"%d" % number) for number in range(sure)])
        store._save_checkpoint()
        kept = store.max_physical_offset
        append(store, *[make_record(b"%d" % number) for number in range(sure, 10)])
        write_entries(store)
        shutil.copytree(first, second)
    # The kernel had written the queue's pages to disk, but not those of the log.
    with (second / "commitlog" / "00000000000000000000").open("r+b") as log:
        log.truncate(kept)
        log.truncate(CONFIG.commitlog_file_bytes)

    boots[0] += 1
    disk = Disk(second)
    disk.remember_all()
    with replaced(disk):
        store = Store.open(second, CONFIG)
        assert queue_end(store, 0) == sure
        append(store, *[make_record(b"other " + b"x" * 300, queue_id=1)] * later)
        store.flush()
        store._save_checkpoint()
        disk.after_power_loss(third, random.Random(0), 0.0)
        store._flusher.stop()
        store._abandon()
    disk.close()

    boots[0] += 1
    with Store.open(third, CONFIG) as store:
        assert queue_end(store, 0) == sure
        assert queue_end(store, 1) == 1 + later


@pytest.mark.parametrize("count", [10, 60], ids=["a part of a file", "more than a file"])
def test_start_syncs_keys_of_killed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The process was killed before it synced them, and no message with a key was stored before the power loss."""
    boots = [0]
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: f"boot {boots[0]}")
    monkeypatch.setattr(store_parts, "boot_id", lambda: f"boot {boots[0]}")
    first, second = tmp_path / "first", tmp_path / "second"
    config = replace(CONFIG, index_entries=40)
    first.mkdir()
    disk = Disk(first)
    with replaced(disk):
        for first_number in (0, count):  # each life adds messages, and is killed
            with killed_store(first, config) as store:
                for number in range(first_number, first_number + count):
                    append(store, make_record(b"%d" % number, keys=f"k{number}"))
                    if number % count == 0:
                        store._save_checkpoint()
                store.flush()
        with killed_store(first, config):
            disk.after_power_loss(second, random.Random(0), 0.0)
    disk.close()

    boots[0] += 1
    with Store.open(second, config) as store:
        assert store.max_offset("orders", 0) == 2 * count
        found = [[record.body for record in store.query("orders", f"k{n}", 0, 1 << 62, 9)] for n in range(2 * count)]
        assert found == [[b"%d" % number] for number in range(2 * count)]


@contextmanager
def killed_store(directory: Path, config: StoreConfig) -> Iterator[Store]:
    """Open the store, and leave it as after SIGKILL."""
    store = Store.open(directory, config)
    yield store
    store._flusher.stop()
    store._abandon()
