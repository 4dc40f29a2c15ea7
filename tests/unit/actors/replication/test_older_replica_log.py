"""Test a replica whose log begins before its master's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tests.store_records import SMALL, append, make_record
from tests.store_replication import read_bodies
from tests.unit.actors.replication.replica_pair import ReplicaPair

CONFIG = replace(SMALL, retention_hours=1, delete_at_hour="*")
LATER_MS = 1 << 60


def test_first_deletion_applies_where_new_master_lacks_second(tmp_path: Path) -> None:
    """Cover a first deletion from before the master's log."""
    pair = ReplicaPair(tmp_path, CONFIG, "first")
    append(pair.master, *[make_record(b"old")] * 3)
    pair.ship()
    pair.master.delete_topic("orders")
    for _ in range(4):
        append(pair.master, make_record(2_000 * b"x", topic="busy"))
    append(pair.master, make_record(b"new"))
    pair.ship()
    assert read_bodies(pair.follower)["orders", 0] == [b"new"]
    pair.master.flush()
    pair.master._age.now_ms = lambda: LATER_MS  # type: ignore[method-assign]
    assert pair.master.delete_expired().log_files
    pair.master.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    pair.restart_master("first")
    pair.master.delete_topic("orders")
    pair.ship()
    assert ("orders", 0) not in read_bodies(pair.follower)
    pair.follower._save_checkpoint()
    pair.restart_master("second")
    pair.copy()
    pair.ship()
    assert read_bodies(pair.follower)["orders", 0] == read_bodies(pair.master)["orders", 0] == [b"new"]
    assert pair.follower.max_offset("orders", 0) == 1
    pair.check_equal()
    pair.close()
