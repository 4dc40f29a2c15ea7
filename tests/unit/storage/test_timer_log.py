"""The files of what waits: what they tell, what they forget, what a crash and a full disk leave of them."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from raymq.storage import file_calls
from raymq.storage.errors import StoreCorrupt, StoreFailed, StoreFull
from raymq.storage.timer_log import ENTRY, HOUR_MS, Entries, Kind, TimerLog, key_of
from tests.faulty_calls import FaultyCalls

HOUR = 400_000
START_MS = HOUR * HOUR_MS


def entry(due_ms: int, offset: int, place: int = 0, kind: Kind = Kind.WAITS, key: int = 7) -> Entries:
    return np.array([(due_ms, offset, place, key, 100, kind)], ENTRY)


def opened(folder: Path, log_end: int = 1 << 40, clean: bool = True) -> TimerLog:
    return TimerLog(folder, log_end=log_end, clean=clean)


def offsets(entries: Entries) -> list[int]:
    return entries["queue_offset"].tolist()


def test_what_waits_in_the_order_of_due_times(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS + 50, 0), entry(START_MS + 10, 2), entry(START_MS + 10, 1)]))
    log.append(entry(START_MS + HOUR_MS, 3))
    log.append(entry(START_MS + 10, 2, kind=Kind.DELIVERED))
    log.append(entry(START_MS + 50, 0))  # told twice, as after a crash
    assert log.hours == [HOUR, HOUR + 1]
    assert offsets(log.waiting(HOUR)) == [1, 0]
    assert offsets(log.waiting(HOUR, START_MS + 50)) == [1]
    assert offsets(log.waiting(HOUR + 1)) == [3]
    assert offsets(log.waiting(HOUR + 2)) == []
    again = opened(tmp_path)
    assert offsets(again.waiting(HOUR)) == [1, 0]
    assert offsets(again.find(START_MS + 10, 7)) == [2, 1, 2]
    assert offsets(again.find(START_MS + 10, 8)) == []


def test_more_than_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raymq.storage.timer_log._CHUNK_ENTRIES", 3)
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS + n, n, place=n) for n in range(10)]))
    log.append(entry(START_MS + 4, 4, kind=Kind.WITHDRAWN, place=99))
    assert offsets(log.waiting(HOUR)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert log.last_place(HOUR) == 99


def test_a_deleted_hour_is_gone(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(entry(START_MS, 0))
    log.delete(HOUR)
    assert log.hours == []
    assert opened(tmp_path).hours == []
    assert log.last_place(HOUR) == -1


def test_a_checkpoint_is_found_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert (log.enqueued, log.log_end) == (0, 0)
    assert log.checkpoint(0) is None
    log.append(entry(START_MS, 0))
    log.enqueued = 1
    write = log.checkpoint(500)
    assert write is not None
    log.append(entry(START_MS + HOUR_MS, 1))
    log.delete(HOUR)
    write()
    assert log.checkpoint(500) is None
    again = opened(tmp_path)
    assert (again.enqueued, again.log_end) == (1, 500)
    assert opened(tmp_path, log_end=300).log_end == 300


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_checkpoint_did_not_bring_to_disk_the_next_one_does(tmp_path: Path, fails: bool) -> None:
    """It failed, or a broker that stops did not wait for it."""
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0), entry(START_MS + HOUR_MS, 1)]))
    first = log.checkpoint(10)
    assert first is not None
    if fails:
        with file_calls.replaced(FaultyCalls("fdatasync", 2, errno.EIO)), pytest.raises(StoreFailed):
            first()
    log.append(entry(START_MS + 2 * HOUR_MS, 2))
    second = log.checkpoint(20)
    assert second is not None
    calls = FaultyCalls()
    with file_calls.replaced(calls):
        second()
    assert calls.counts["fdatasync"] == 3
    log.append(entry(START_MS, 3))
    third = log.checkpoint(30)
    assert third is not None
    calls = FaultyCalls()
    with file_calls.replaced(calls):
        third()
    assert calls.counts["fdatasync"] == 1


def test_half_an_entry_is_cut_off(tmp_path: Path) -> None:
    opened(tmp_path).append(np.concatenate([entry(START_MS, 0), entry(START_MS, 1)]))
    path = tmp_path / f"{HOUR:08d}"
    path.write_bytes(path.read_bytes()[:-1])
    log = opened(tmp_path, clean=False)
    log.append(entry(START_MS, 5))
    assert offsets(log.waiting(HOUR)) == [0, 5]
    assert path.stat().st_size == 2 * ENTRY.itemsize


def test_after_a_crash_entries_of_lost_records_are_dropped(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0, place=10), entry(START_MS, 1, place=200)]))
    log.append(entry(START_MS, 0, place=100, kind=Kind.DELIVERED))
    assert offsets(opened(tmp_path, log_end=100, clean=True).waiting(HOUR)) == [1]
    # The copy and the second message were in the part of the log that the machine lost: the first one waits again.
    assert offsets(opened(tmp_path, log_end=100, clean=False).waiting(HOUR)) == [0]
    assert offsets(opened(tmp_path, log_end=1 << 40).waiting(HOUR)) == [0]


def test_a_full_disk_leaves_whole_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    log.append(entry(START_MS, 0))
    path = tmp_path / f"{HOUR:08d}"

    def half(fd: int, content: memoryview) -> int:
        import os

        if os.fstat(fd).st_size > ENTRY.itemsize:
            raise OSError(errno.ENOSPC, "no room")
        return os.write(fd, content[: len(content) // 3])

    monkeypatch.setattr(file_calls.current, "write", half)
    with pytest.raises(StoreFull):
        log.append(np.concatenate([entry(START_MS, 1), entry(START_MS, 2)]))
    monkeypatch.undo()
    assert path.stat().st_size == ENTRY.itemsize
    log.append(entry(START_MS, 3))
    assert offsets(log.waiting(HOUR)) == [0, 3]


def test_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(StoreCorrupt):
        opened(tmp_path)


def test_keys_differ() -> None:
    assert len({key_of(f"t_{n}") for n in range(1_000)}) == 1_000
    assert -(1 << 63) <= key_of("t_1") < 1 << 63
