"""Lose power after a retention run: a queue's end survives the deletion of the log files with its messages."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer, store_parts
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests.crash.power_loss import Disk
from tests.store_records import SMALL, append, make_record

CONFIG = replace(
    SMALL, commitlog_file_bytes=1 << 14, flush_interval_ms=3_600_000, retention_hours=1, delete_at_hour="*"
)


def test_queue_offsets_are_not_reused_after_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's last message expires before a checkpoint records the queue's end."""
    boots = ["first"]
    for module in (store_parts, checkpointer):
        monkeypatch.setattr(module, "boot_id", lambda: boots[-1])
    now_ms = 1_700_000_000_000
    directory, found = tmp_path / "powered", tmp_path / "found"
    directory.mkdir()
    disk = Disk(directory)
    with replaced(disk):
        store = Store.open(directory, CONFIG, now_ms=lambda: now_ms)
        append(store, *[make_record(b"quiet", topic="quiet")] * 3)
        for _ in range(4):
            append(store, make_record(10_000 * b"x", topic="busy"))
        store.flush()
        now_ms += 2 * 3_600_000
        append(store, make_record(b"y", topic="busy"))
        store.flush()
        assert store.delete_expired().log_files
        store.wait_for_removals()
        assert store.min_offset("quiet", 0) == store.max_offset("quiet", 0) == 3
        disk.after_power_loss(found, random.Random(1), 0.0)
        store.close()
        disk.close()
    boots.append("second")
    with Store.open(found, CONFIG, now_ms=lambda: now_ms) as store:
        assert append(store, make_record(b"new", topic="quiet")).queue_offsets.tolist() == [3]
