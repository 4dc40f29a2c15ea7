"""A broker's epochs on disk follow its store: at a start, when one begins, and when retention deletes log files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.actors.broker.replication.epoch_file import EpochFile
from raymq.actors.broker.replication.epoch_file_cache import EpochFileCache
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


def numbers(kept: EpochFileCache) -> list[int]:
    return [entry.epoch for entry in kept.map]


@pytest.fixture
def file(tmp_path: Path) -> EpochFile:
    made = EpochFile(*StorePaths(tmp_path).master_epochs)
    made.save(EpochMap([EpochStart(1, BEGIN), EpochStart(2, at(100, 5)), EpochStart(5, at(100, 7))]))
    return made


def test_at_a_start_epochs_behind_the_logs_end_never_were(file: EpochFile) -> None:
    assert numbers(EpochFileCache(file, BEGIN, at(99, 9))) == [1]
    assert numbers(EpochFileCache(file, BEGIN, at(1 << 40, 99))) == [1]


def test_an_epoch_has_begun_when_it_is_on_disk(file: EpochFile) -> None:
    kept = EpochFileCache(file, BEGIN, at(200, 9))
    kept.begin(EpochStart(6, at(200, 9)))
    assert file.load() == kept.map
    for wrong in (EpochStart(6, at(200, 9)), EpochStart(7, at(150, 9))):
        with pytest.raises(InvalidInput):
            kept.begin(wrong)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)), pytest.raises(StoreFull):
        kept.begin(EpochStart(7, at(200, 9)))
    with replaced(FaultyCalls("fsync", 1, errno.EIO)), pytest.raises(StoreFailed):
        kept.begin(EpochStart(7, at(200, 9)))
    assert numbers(kept) == [1, 2, 5, 6]
    assert file.load() == kept.map


def test_retention_takes_the_epochs_of_the_files_that_it_deletes(tmp_path: Path) -> None:
    now = [1_000_000_000]
    file = EpochFile(*StorePaths(tmp_path / "s").master_epochs)
    with Store.open(tmp_path / "s", EXPIRING, now_ms=lambda: now[0]) as store:
        kept = EpochFileCache(file, BEGIN, BEGIN)
        for number in range(1, 6):
            kept.begin(EpochStart(number, at(store.max_physical_offset)))
            append(store, make_record(bytes(60_000)))
        store.flush()
        now[0] += 7_200_000
        assert store.delete_expired().log_files == 4
        with replaced(FaultyCalls("write", 1, errno.ENOSPC)):
            kept.drop_before(at(store.min_physical_offset))
        assert numbers(kept) == [1, 2, 3, 4, 5]
        kept.drop_before(at(store.min_physical_offset))
        # The one in which the log begins keeps its own start: by that replicas know it again.
        assert kept.map.at(store.min_physical_offset) == next(iter(kept.map))
        assert numbers(kept)[-1] == 5
        assert len(kept.map) < 5
        assert file.load() == kept.map
        end = at(store.max_physical_offset)
    with Store.open(tmp_path / "s", EXPIRING) as store:
        assert EpochFileCache(file, at(store.min_physical_offset), end).map == kept.map


def test_a_snapshot_brings_its_own_epochs(file: EpochFile) -> None:
    kept = EpochFileCache(file, BEGIN, at(200, 9))
    kept.replace(EpochMap([EpochStart(9, at(500, 3))]))
    assert file.load() == kept.map
    assert numbers(kept) == [9]
