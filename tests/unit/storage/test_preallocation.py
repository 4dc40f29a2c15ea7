"""Test the thread that prepares log files ahead, and the bound on mapped files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import StoreFull
from raymq.storage.files import mapped_file_cache
from raymq.storage.files.mapped_file_queue import MappedFileQueue, file_name
from raymq.storage.files.preallocation import BLOCKS_BYTES, WINDOW_BYTES, Preallocator
from raymq.storage.store import Store
from tests.polling import poll_until
from tests.store_records import SMALL, append, bodies, make_record

MIB = 1 << 20
LARGE = replace(SMALL, commitlog_file_bytes=16 * MIB)


def log_names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "commitlog").glob("*"))


@pytest.mark.parametrize("clean", [False, True])
def test_files_within_the_window_are_created_with_blocks(tmp_path: Path, clean: bool) -> None:
    files = MappedFileQueue(tmp_path / "log", 32 * MIB, writable=True)
    ahead = Preallocator(files, clean=clean)
    ahead.start(5000)
    poll_until(lambda: (tmp_path / "log" / file_name(32 * MIB)).exists())
    ahead.advance(40 * MIB)
    poll_until(lambda: (tmp_path / "log" / file_name(64 * MIB)).exists())
    ahead.stop()
    ahead.stop()
    first = files.extend(0)
    assert os.stat(first.path).st_blocks * 512 >= 31 * MIB
    assert bytes(first.view[:MIB]) == bytes(MIB)
    files.close()
    assert [path.name for path in (tmp_path / "log").iterdir()] == [file_name(0)]


def test_blocks_are_allocated_as_far_ahead_as_written(tmp_path: Path) -> None:
    files = MappedFileQueue(tmp_path / "log", 2 * BLOCKS_BYTES, writable=True)
    ahead = Preallocator(files, clean=True)
    ahead.start(0)

    def allocated() -> int:
        return os.stat(tmp_path / "log" / file_name(0)).st_blocks * 512

    poll_until(lambda: (tmp_path / "log" / file_name(0)).exists() and allocated() >= WINDOW_BYTES)
    ahead.advance(WINDOW_BYTES * 3 // 4)
    poll_until(lambda: allocated() >= WINDOW_BYTES * 7 // 4)
    assert allocated() < WINDOW_BYTES * 9 // 4  # a step may have gone further
    ahead.advance(WINDOW_BYTES * 3 // 2)
    poll_until(lambda: allocated() >= WINDOW_BYTES * 3)
    ahead.stop()
    files.close()


def test_store_uses_prepared_files_and_leaves_no_empty_file(tmp_path: Path) -> None:
    assert LARGE.commitlog_file_bytes <= WINDOW_BYTES
    with Store.open(tmp_path, LARGE) as store:
        poll_until(lambda: file_name(0) in log_names(tmp_path))
        body = os.urandom(100_000)
        for number in range(400):
            append(store, make_record(body + b"%d" % number))
            if number % 50 == 0:
                store.flush()
        assert bodies(store) == [body + b"%d" % number for number in range(400)]
        end = store.max_physical_offset
    assert log_names(tmp_path) == [file_name(start) for start in range(0, end, 16 * MIB)]
    with Store.open(tmp_path, LARGE) as store:
        assert (store.recovery.clean, store.recovery.corruption, store.max_physical_offset) == (True, [], end)


def test_full_disk_for_the_next_file_does_not_fail_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def full(_self: object, begin: int, _end: int) -> None:
        attempts.append(begin)
        raise StoreFull("no room")

    monkeypatch.setattr("raymq.storage.files.mapped_file.MappedFile.allocate_ahead", full)
    with Store.open(tmp_path, LARGE) as store:
        append(store, make_record(b"first"))
        poll_until(lambda: bool(attempts))
        append(store, make_record(b"second"))
        assert bodies(store) == [b"first", b"second"]


def test_queues_beyond_the_mapped_files_limit_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file_cache.MappedFileCache.__init__, "__defaults__", (4,))
    config = replace(SMALL, commitlog_file_bytes=MIB, index_slots=500, index_entries=5000)
    before = len(os.listdir("/proc/self/fd"))
    with Store.open(tmp_path, config) as store:
        for round_ in range(12):
            records = [make_record(b"%d" % round_, queue_id=queue) for queue in range(40)]
            store.append(b"".join(records), np.array([len(record) for record in records], np.int32))
            for queue in range(0, 40, 7):
                append(store, make_record(b"one", queue_id=queue))
        assert len(os.listdir("/proc/self/fd")) < before + 2 * 4 + 16
    with Store.open(tmp_path, config) as store:
        for queue in range(40):
            expected = [each for n in range(12) for each in ([b"%d" % n] + [b"one"] * (queue % 7 == 0))]
            assert bodies(store, "orders", queue) == expected
