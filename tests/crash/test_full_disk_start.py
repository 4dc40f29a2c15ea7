"""Test that a store on a full disk opens, is read, lets retention delete, and recovers, by its disk reserve."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreFull
from raymq.storage.files.disk_reserve import DISK_RESERVE_BYTES
from raymq.storage.files.file_calls import replaced
from raymq.storage.log.retention import DiskUsage
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from tests.full_disk import FullDisk
from tests.store_records import SMALL, append, bodies, make_record

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000, disk_refuse_ratio=1.0)
LATER_MS = 10**13


def make_killed_store(directory: Path, count: int = 400) -> None:
    """Make a store with some log files whose process was killed."""
    store = Store.open(directory, CONFIG)
    for number in range(count):
        append(store, make_record(b"%d" % number, keys=f"k{number}"))
    store.flush()
    store._flusher.stop()
    store._abandon()


def check_recovery_from_full_disk(directory: Path) -> None:
    """Check that it opens, is read, deletes expired files, and stores messages again."""
    with Store.open(directory, CONFIG) as store:
        found = [int(body) for body in bodies(store)]
        assert found == list(range(found[0], 400))
        expired = replace(store.retention, hours=1e-9)
        store.retention = expired
        store._age.now_ms = lambda: LATER_MS
        assert store.delete_expired(asked=True).log_files
        assert store.wait_for_removals(10)
        append(store, make_record(b"400"))
        store.delete_expired()
        assert StorePaths(directory).disk_reserve.stat().st_blocks * 512 >= DISK_RESERVE_BYTES, "it is made again"
    with Store.open(directory, CONFIG) as store:
        assert int(bodies(store)[-1]) == 400


def test_store_opens_on_full_disk_with_disk_reserve(tmp_path: Path) -> None:
    """Guard against fault 13.25: opening failed at its first write, so retention never ran."""
    make_killed_store(tmp_path)
    with replaced(FullDisk(0)):
        check_recovery_from_full_disk(tmp_path)


def test_open_on_full_disk_without_reserve_raises_store_full(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    StorePaths(tmp_path).disk_reserve.unlink()
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        Store.open(tmp_path, CONFIG)
    with Store.open(tmp_path, CONFIG) as store:
        assert [int(body) for body in bodies(store)] == list(range(400))


def test_disk_reserve_stays_if_disk_has_space(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    with Store.open(tmp_path, CONFIG):
        assert StorePaths(tmp_path).disk_reserve.exists()


def test_store_opens_on_file_system_without_free_byte(small_disk: Path) -> None:
    make_killed_store(small_disk / "store")
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    assert DiskUsage.of(small_disk).free == 0
    check_recovery_from_full_disk(small_disk / "store")


def test_retention_deletes_on_disk_full_since_checkpoint(tmp_path: Path) -> None:
    """Their deletion waits for a checkpoint, which can only use the disk reserve."""
    with Store.open(tmp_path, CONFIG) as store:
        for number in range(400):
            append(store, make_record(b"%d" % number, keys=f"k{number}"))
        store.flush()
        store.retention = replace(store.retention, hours=1e-9)
        store._age.now_ms = lambda: LATER_MS
        disk = FullDisk(0)
        with replaced(disk):
            assert store.delete_expired(asked=True).log_files
            assert store.wait_for_removals(10)
            assert disk.free_bytes > 0
