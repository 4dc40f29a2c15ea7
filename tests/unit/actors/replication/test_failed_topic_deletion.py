"""Test a topic deletion that fails on a full disk: replicas never hear of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.files import file_calls
from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import FaultyCalls
from tests.store_records import append, make_record, write_entries
from tests.store_replication import read_bodies
from tests.unit.actors.replication.replica_pair import ReplicaPair


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "not cut"])
def test_failed_deletion_is_not_shipped(tmp_path: Path, is_cut: bool) -> None:
    pair = ReplicaPair(tmp_path)
    append(pair.master, *[make_record(b"kept")] * 3)
    append(pair.master, make_record(b"other", topic="other"))
    pair.ship()
    write_entries(pair.master)
    calls = FaultyCalls("rename", 1, errno.ENOSPC, real=file_calls.current)
    if not is_cut:
        calls = FaultyCalls("truncate", 1, errno.ENOSPC, real=calls)
    with replaced(calls), pytest.raises(StoreError):
        pair.master.delete_topic("orders")
    append(pair.master, make_record(b"next"))
    pair.ship()
    assert read_bodies(pair.follower)["orders", 0] == [*[b"kept"] * 3, b"next"]
    pair.master.delete_topic("other")
    append(pair.master, make_record(b"last"))
    pair.ship()
    pair.check_equal()
    pair.reopen(killed=True)
    pair.check_equal()
    assert read_bodies(pair.follower)["orders", 0] == [*[b"kept"] * 3, b"next", b"last"]
    pair.close()
