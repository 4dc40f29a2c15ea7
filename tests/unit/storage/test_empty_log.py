"""Test that a replica that joins late begins where the master's log begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.empty_log import create_empty_log
from raymq.storage.errors import InvalidInput, StoreLocked
from raymq.storage.store import Store
from tests.store_records import EXPIRING, append, make_record
from tests.store_replication import log_content, read_bodies, ship

FILE = EXPIRING.commitlog_file_bytes


def test_new_replica_begins_at_the_masters_log_begin(tmp_path: Path) -> None:
    now = [1_000_000_000]
    with Store.open(tmp_path / "master", EXPIRING, now_ms=lambda: now[0]) as master:
        for number in range(60):
            append(master, make_record(b"%d " % number + bytes(9_000), queue_id=number % 2, keys=f"k{number}"))
        master.flush()
        now[0] += 7_200_000
        assert master.delete_expired().log_files > 3
        assert master.wait_for_removals(10)
        begin = master.min_physical_offset
        create_empty_log(tmp_path / "replica", EXPIRING, begin)
        create_empty_log(tmp_path / "replica", EXPIRING, begin)
        for _ in range(2):
            with Store.open(tmp_path / "replica", EXPIRING) as replica:
                replica.follow()
                assert begin == replica.min_physical_offset
                ship(master, replica, most=20_000)
                assert read_bodies(replica) == read_bodies(master)
                for queue_id in (0, 1):
                    assert replica.min_offset("orders", queue_id) == master.min_offset("orders", queue_id) > 0
                assert [r.queue_offset for r in replica.query("orders", "k59", 0, 1 << 60, 9)] == [29]
    assert log_content(tmp_path / "replica") == log_content(tmp_path / "master")


def test_empty_log_is_created_only_in_a_directory_without_log(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        create_empty_log(tmp_path / "s", EXPIRING, FILE + 1)
    create_empty_log(tmp_path / "s", EXPIRING, 3 * FILE)
    with pytest.raises(InvalidInput):
        create_empty_log(tmp_path / "s", EXPIRING, 4 * FILE)
    with Store.open(tmp_path / "s", EXPIRING) as store:
        append(store, make_record(b"x"))
        with pytest.raises(StoreLocked):
            create_empty_log(tmp_path / "s", EXPIRING, 3 * FILE)
    with pytest.raises(InvalidInput):
        create_empty_log(tmp_path / "s", EXPIRING, 3 * FILE)


@pytest.mark.parametrize("size", [0, 100])
def test_interrupted_creation_of_an_empty_log_is_repeated(tmp_path: Path, size: int) -> None:
    file = tmp_path / "s" / "commitlog" / f"{3 * FILE:020d}"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(size))
    create_empty_log(tmp_path / "s", EXPIRING, 3 * FILE)
    with Store.open(tmp_path / "s", EXPIRING) as store:
        assert (store.min_physical_offset, store.max_physical_offset) == (3 * FILE, 3 * FILE)
