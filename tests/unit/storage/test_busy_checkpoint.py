"""Test that syncs skipped for want of descriptors are done before the next checkpoint."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from tests.crash.power_loss import Disk
from tests.state_journals import open_table, open_tables
from tests.store_records import SMALL, append, bodies, make_record

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 20, index_entries=10_000, flush_interval_ms=3_600_000)


class Busy(Disk):
    """Record what was synced, and refuse descriptors for some paths."""

    #: The paths without descriptors, as a pattern.
    without = "(?!)"

    def duplicate(self, fd: int) -> int:
        self._check(os.readlink(f"/proc/self/fd/{fd}"))
        return super().duplicate(fd)

    def open(self, path: Path, flags: int) -> int:
        self._check(str(path))
        return super().open(path, flags)

    def _check(self, path: str) -> None:
        if re.search(self.without, path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def fails_once(self, call: Callable[[], None], *without: str) -> None:
        """Call it without a descriptor for each path, then with all; then lose power."""
        for self.without in without:
            with pytest.raises(StoreBusy):
                call()
        self.without = "(?!)"
        call()
        self.after_power_loss(self.lost, random.Random(1), 0.0)

    @property
    def lost(self) -> Path:
        """Return the folder of what the disk holds after the power loss."""
        return self.root.parent / "lost"


def test_keys_are_found_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    disk = Busy(tmp_path / "s")
    with replaced(disk):
        store = Store.open(tmp_path / "s", CONFIG)
        append(store, make_record(b"0", keys="k0"))
        store._save_checkpoint()
        for number in range(1, 100):
            append(store, make_record(b"%d" % number, keys=f"k{number}"))
        disk.fails_once(store._save_checkpoint, "/index/")
        store.close()
    disk.close()
    for module in ("raymq.storage.store_parts.boot_id", "raymq.storage.checkpointer.boot_id"):
        monkeypatch.setattr(module, lambda: "another")
    with Store.open(tmp_path / "lost", CONFIG) as store:
        assert len(bodies(store)) == 100
        assert [len(store.query("orders", f"k{number}", 0, 1 << 60, 9)) for number in range(100)] == [1] * 100


def test_name_of_a_new_index_file_is_synced_by_the_retry(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    disk = Busy(tmp_path / "s")
    with replaced(disk):
        store = Store.open(tmp_path / "s", CONFIG)
        append(store, make_record(b"0", keys="k0"))
        disk.fails_once(store._save_checkpoint, "/s/index$")
        store.close()
    disk.close()
    assert len(list((tmp_path / "lost" / "index").iterdir())) == 1


def test_name_of_a_new_journal_is_synced_by_the_retry(tmp_path: Path) -> None:
    (tmp_path / "s" / "raymq").mkdir(parents=True)
    disk = Busy(tmp_path / "s")
    with replaced(disk):
        offsets = ConsumerOffsets()
        journal = open_tables(tmp_path / "s", offsets)
        offsets.commit("g", "t", 0, 1)
        journal.sync()
        disk.remember_all()
        journal._begin_file()
        offsets.commit("g", "t", 0, 2)
        disk.fails_once(journal.sync, "/state$", "/journal-0*2$")
        journal.close(compact=False)
    disk.close()
    assert open_table(tmp_path / "lost", ConsumerOffsets()).get("g", "t", 0) == 2
