"""Test the bound on mapped files, and files that are prepared before they are needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.files.background_preparer import BackgroundPreparer
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.log import commit_log, key_index
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store
from tests.polling import poll_until
from tests.store_records import SMALL

CONFIG = replace(SMALL, consume_queue_file_entries=1000, index_slots=8, index_entries=64)


def put(store: Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        record = encode(
            "orders",
            0,
            b"%06d" % number,
            encode_properties({"KEYS": f"k{number}"}),
            born_timestamp_ms=1,
            born_host=bytes(8),
        )
        store.append(record, np.array([len(record)], np.int32))


def count_mapped_files(folder: Path) -> int:
    """Return how many different files in the folder are mapped in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if f"{folder}/" in line})


def test_mapped_log_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_MAPPED_FILES", 3)
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, 700)
        assert len(list((tmp_path / "commitlog").iterdir())) > 15
        assert count_mapped_files(tmp_path / "commitlog") <= 3
        with store.read("orders", 0, 0, 5) as lease:
            for offset in range(0, 700, 10):
                with store.read("orders", 0, offset, 10) as other:
                    assert [int(record.body) for record in other.messages()] == list(range(offset, offset + 10))
            assert [int(record.body) for record in lease.messages()] == [0, 1, 2, 3, 4]
            assert count_mapped_files(tmp_path / "commitlog") <= 4
        assert count_mapped_files(tmp_path / "commitlog") <= 3
        store.flush()
    with Store.open(tmp_path, CONFIG) as store:
        assert [int(record.body) for record in store.walk(0)] == list(range(700))


def test_mapped_index_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_MAPPED_FILES", 2)
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, 700)
    with Store.open(tmp_path, CONFIG) as store:
        assert len(list((tmp_path / "index").iterdir())) >= 11
        assert count_mapped_files(tmp_path / "index") == 0
        for number in range(0, 700, 9):
            assert [int(record.body) for record in store.query("orders", f"k{number}", 0, 1 << 60, 5)] == [number]
            assert count_mapped_files(tmp_path / "index") <= 2
        put(store, 700, 1)
        assert len(store.query("orders", "k700", 0, 1 << 60, 5)) == 1


def test_next_index_file_is_created_ahead(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, 62)
        poll_until(lambda: len(list(folder.iterdir())) == 2)
        newest = max(folder.iterdir())
        poll_until(lambda: newest.stat().st_size == min(folder.iterdir()).stat().st_size)
        put(store, 62, 2)
        assert max(folder.iterdir()) == newest
        assert [r.queue_offset for r in store.query("orders", "k63", 0, 1 << 60, 5)] == [63]


def test_unused_index_file_is_removed_at_close(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, 62)
        poll_until(lambda: len(list((tmp_path / "index").iterdir())) == 2)
    assert len(list((tmp_path / "index").iterdir())) == 1


@pytest.mark.parametrize("pages", [1, 6])
def test_growing_file_gets_its_next_blocks_ahead(tmp_path: Path, pages: int) -> None:
    ahead = BackgroundPreparer()
    ahead.start()
    path = tmp_path / "file"
    file = MappedFile(path, 0, 1 << 20, writable=True, allocate_step_bytes=4096, ahead=ahead)
    try:
        for page in range(pages):
            file.allocate(page * 4096, page * 4096 + 20)
        done: list[int] = []
        ahead.submit(lambda: done.append(1))
        poll_until(lambda: bool(done))
        # A file with a single entry gets no further blocks.
        assert (path.stat().st_blocks * 512 > pages * 4096) == (pages > 1)
    finally:
        ahead.stop()
        file.close()
