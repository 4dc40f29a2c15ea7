"""Test that epochs on disk follow the store at starts, new epochs and retention."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.actors.broker.replication.epoch_file import EpochFile, EpochFileCache
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.storage.errors import InvalidInput, StoreFailed, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from tests.faulty_calls import FaultyCalls
from tests.store_records import EXPIRING, append, make_record


def at(offset: int, sequence: int = 0) -> StreamPosition:
    return StreamPosition(offset, sequence)


def numbers(cache: EpochFileCache) -> list[int]:
    return [entry.epoch for entry in cache.map]


@pytest.fixture
def file(tmp_path: Path) -> EpochFile:
    made = EpochFile(*StorePaths(tmp_path).master_epochs)
    made.save(EpochMap([EpochStart(1, BEGIN), EpochStart(2, at(100, 5)), EpochStart(5, at(100, 7))]))
    return made


def test_start_drops_epochs_beyond_log_end(file: EpochFile) -> None:
    assert numbers(EpochFileCache(file, BEGIN, at(99, 9))) == [1]
    assert numbers(EpochFileCache(file, BEGIN, at(1 << 40, 99))) == [1]


def test_epoch_begins_once_it_is_on_disk(file: EpochFile) -> None:
    cache = EpochFileCache(file, BEGIN, at(200, 9))
    cache.begin(EpochStart(6, at(200, 9)))
    assert file.load() == cache.map
    for wrong in (EpochStart(6, at(200, 9)), EpochStart(7, at(150, 9))):
        with pytest.raises(InvalidInput):
            cache.begin(wrong)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)), pytest.raises(StoreFull):
        cache.begin(EpochStart(7, at(200, 9)))
    with replaced(FaultyCalls("fsync", 1, errno.EIO)), pytest.raises(StoreFailed):
        cache.begin(EpochStart(7, at(200, 9)))
    assert numbers(cache) == [1, 2, 5, 6]
    assert file.load() == cache.map


def test_retention_drops_epochs_of_deleted_files(tmp_path: Path) -> None:
    now = [1_000_000_000]
    file = EpochFile(*StorePaths(tmp_path / "s").master_epochs)
    with Store.open(tmp_path / "s", EXPIRING, now_ms=lambda: now[0]) as store:
        cache = EpochFileCache(file, BEGIN, BEGIN)
        for number in range(1, 6):
            cache.begin(EpochStart(number, at(store.max_physical_offset)))
            append(store, make_record(bytes(60_000)))
        store.flush()
        now[0] += 7_200_000
        assert store.delete_expired().log_files == 4
        with replaced(FaultyCalls("write", 1, errno.ENOSPC)):
            cache.drop_before(at(store.min_physical_offset))
        assert numbers(cache) == [1, 2, 3, 4, 5]
        cache.drop_before(at(store.min_physical_offset))
        # The epoch in which the log begins keeps its start, by which replicas recognise it.
        assert cache.map.at(store.min_physical_offset) == next(iter(cache.map))
        assert numbers(cache)[-1] == 5
        assert len(cache.map) < 5
        assert file.load() == cache.map
        end = at(store.max_physical_offset)
    with Store.open(tmp_path / "s", EXPIRING) as store:
        assert EpochFileCache(file, at(store.min_physical_offset), end).map == cache.map


def test_snapshot_replaces_epochs(file: EpochFile) -> None:
    cache = EpochFileCache(file, BEGIN, at(200, 9))
    cache.replace(EpochMap([EpochStart(9, at(500, 3))]))
    assert file.load() == cache.map
    assert numbers(cache) == [9]
