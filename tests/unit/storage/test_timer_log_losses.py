"""Test the timer log's journal and checkpoints after crashes, damage, full disks and power loss."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.files import file_calls
from raymq.storage.timers import timer_log
from raymq.storage.timers.timer_entry import ENTRY, HOUR_MS, MIN_KEY, EntryKind
from raymq.storage.timers.timer_log import TimerLog
from tests.faulty_calls import FaultyCalls
from tests.store_records import flip_byte
from tests.unit.storage.timer_logs import START_MS, checkpoint, entry, open_timer_log, waiting


@pytest.mark.usefixtures("runs_at_once")
@pytest.mark.parametrize("call", ["open", "write", "fdatasync", "fsync", "rename"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_failed_checkpoint_is_completed_by_the_next(tmp_path: Path, call: str, number: int) -> None:
    # The checkpoint failed, or a broker that stops did not wait for it.
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0), entry(START_MS + HOUR_MS, 1)]))
    first = log.checkpoint(10)
    assert first is not None
    calls = FaultyCalls(call, number, errno.EIO)
    with file_calls.replaced(calls):
        try:
            first()
        except StoreFailed:
            assert waiting(open_timer_log(tmp_path)) == [0, 1]
    log.append(entry(START_MS + 2 * HOUR_MS, 2))
    assert waiting(log) == [0, 1, 2]
    checkpoint(log, 20)
    assert waiting(log) == [0, 1, 2]
    again = open_timer_log(tmp_path)
    assert waiting(again) == [0, 1, 2]
    assert again.log_end == 20


def test_partial_append_is_cut_off(tmp_path: Path) -> None:
    log = open_timer_log(tmp_path)
    log.append(entry(START_MS, 0))
    log.append(np.concatenate([entry(START_MS, 1), entry(START_MS, 2)]))
    [path] = tmp_path.glob("journal.*")
    path.write_bytes(path.read_bytes()[:-1])
    log = open_timer_log(tmp_path)
    log.append(entry(START_MS, 5))
    assert waiting(log) == [0, 5]
    assert waiting(open_timer_log(tmp_path)) == [0, 5]
    assert path.stat().st_size == 2 * (8 + ENTRY.itemsize)


def journal_of_three(folder: Path) -> tuple[bytes, int]:
    """Return the journal of three appends, and its length at the checkpoint after two."""
    log = open_timer_log(folder)
    log.append(np.concatenate([entry(START_MS, 0, 10), entry(START_MS, 1, 20)]))
    log.append(entry(START_MS, 0, 30, EntryKind.DELIVERED))
    log.enqueued = 2
    checkpoint(log, 40)
    log.append(entry(START_MS, 2, 50))
    log.close()
    [path] = folder.glob("journal.*")
    return path.read_bytes(), path.stat().st_size - 8 - ENTRY.itemsize


def test_flipped_byte_in_the_journal_is_detected(tmp_path: Path) -> None:
    """Detect flips in due time, offset or kind, which lost or repeated a message.

    Damage before the last checkpoint resets the whole log; damage behind it resets only the entries since then.
    """
    content, saved = journal_of_three(tmp_path / "model")
    [path] = (tmp_path / "model").glob("journal.*")
    state = (tmp_path / "model" / "state.json").read_bytes()
    for place in range(len(content)):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / "state.json").write_bytes(state)
        (folder / path.name).write_bytes(content)
        flip_byte(folder / path.name, place)
        log = open_timer_log(folder)
        position = (log.enqueued, log.log_end, waiting(log))
        assert position == ((0, 0, []) if place < saved else (2, 40, [1]))
        log.append(entry(START_MS, 7))
        log.close()
        assert waiting(open_timer_log(folder)) == [*position[2], 7]


@pytest.mark.parametrize("length", range(0, 184, 7))
def test_shortened_journal_is_detected(tmp_path: Path, length: int) -> None:
    content, saved = journal_of_three(tmp_path)
    [path] = tmp_path.glob("journal.*")
    path.write_bytes(content[:length])
    log = open_timer_log(tmp_path)
    assert (log.enqueued, waiting(log)) == ((0, []) if length < saved else (2, [1]))


def test_missing_journal_is_detected(tmp_path: Path) -> None:
    journal_of_three(tmp_path)
    [path] = tmp_path.glob("journal.*")
    path.unlink()
    assert open_timer_log(tmp_path).enqueued == 0


def test_journals_of_two_processes_survive_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One journal was to become a run when the process died: it was cut to nothing, though the state named it.
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 2)
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0, 1), entry(START_MS, 1, 2)]))
    log.enqueued = 2
    assert log.checkpoint(3) is not None  # and the process dies before it is called
    log.append(entry(START_MS, 2, 4))
    log.close()
    assert len(list(tmp_path.glob("journal.*"))) == 2
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1 << 15)
    log = open_timer_log(tmp_path)
    log.enqueued = 3
    checkpoint(log, 5)
    log.append(entry(START_MS, 3, 6))
    log.close()
    log = TimerLog(tmp_path, log_end=5, memory_lost=True)
    assert (log.enqueued, waiting(log)) == (3, [0, 1, 2])


@pytest.mark.parametrize("in_runs", [False, True])
def test_entries_of_lost_records_are_dropped_after_a_crash(
    tmp_path: Path, in_runs: bool, request: pytest.FixtureRequest
) -> None:
    if in_runs:
        request.getfixturevalue("runs_at_once")
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0, place=10), entry(START_MS, 1, place=200)]))
    log.append(entry(START_MS, 0, place=100, kind=EntryKind.DELIVERED))
    checkpoint(log, 300)
    assert len(log.runs) == in_runs
    # The copy and the second message were in the lost part of the log: the first message is pending again.
    lost = open_timer_log(tmp_path, log_end=100)
    assert waiting(lost) == [0]
    assert lost.ended_between(0, 9).tolist() == []
    assert waiting(open_timer_log(tmp_path, log_end=1 << 40)) == [0]


def test_full_disk_leaves_whole_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_timer_log(tmp_path)
    log.append(entry(START_MS, 0))
    [path] = tmp_path.glob("journal.*")

    def half(fd: int, content: memoryview) -> int:
        if os.fstat(fd).st_size > 8 + ENTRY.itemsize:
            raise OSError(errno.ENOSPC, "no room")
        return os.write(fd, content[: len(content) // 3])

    monkeypatch.setattr(file_calls.current, "write", half)
    with pytest.raises(StoreFull):
        log.append(np.concatenate([entry(START_MS, 1), entry(START_MS, 2)]))
    monkeypatch.undo()
    assert path.stat().st_size == 8 + ENTRY.itemsize
    log.append(entry(START_MS, 3))
    assert waiting(log) == [0, 3]
    assert waiting(open_timer_log(tmp_path)) == [0, 3]


@pytest.mark.usefixtures("runs_at_once")
@pytest.mark.parametrize(
    ("call", "error"), [("write", errno.ENOSPC), ("open", errno.EMFILE), ("truncate", errno.ENOSPC)]
)
def test_failed_checkpoints_leave_few_files(tmp_path: Path, call: str, error: int) -> None:
    # A failed checkpoint is retried a little later, with files of other names.
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(HOUR_MS + n, n) for n in range(40)]))
    for nth in range(1, 20):
        calls = FaultyCalls(call, nth, error, lasting=True)
        write = log.checkpoint(1 << 40)
        if write is None:  # the last one was done except for the removal of files
            break
        with file_calls.replaced(calls):
            try:
                write()
            except StoreError:
                assert len(list(tmp_path.glob("run.*"))) <= 1  # the one that the state names, if it is on disk
            else:
                break
    assert nth > 1
    assert waiting(log) == list(range(40))
    log.close()
    assert waiting(open_timer_log(tmp_path)) == list(range(40))


def test_power_loss_resets_the_journal_to_its_synced_length(tmp_path: Path) -> None:
    # An unwritten page is full of zeros, and an entry of zeros would end the timer at offset 0.
    log = open_timer_log(tmp_path)
    log.append(entry(HOUR_MS, 0, 0x10))
    log.enqueued = 1
    checkpoint(log, 0x20)
    log.append(np.zeros(3, ENTRY))
    log.enqueued = 4
    log.close()
    again = TimerLog(tmp_path, log_end=0x1000, queue_end=4, memory_lost=True)
    assert again.enqueued == 1
    found, _ = again.waiting((0, MIN_KEY), 2 * HOUR_MS, 100)
    assert found["queue_offset"].tolist() == [0]
    again.close()
    shorter = TimerLog(tmp_path, log_end=0x1000, queue_end=0, memory_lost=True)
    assert shorter.enqueued == 0


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
@pytest.mark.parametrize("taken", [0, 3])
def test_second_power_loss_keeps_entries_synced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, checkpoints: int
) -> None:
    # The first loss came while a journal became a run: two journals count then, each up to its synced length.
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 10)

    def append_timers(log: TimerLog, stop: int) -> None:
        log.append(np.concatenate([entry(HOUR_MS + n, n, 10 * n) for n in range(log.enqueued, stop)]))
        log.enqueued = stop

    log = open_timer_log(tmp_path)
    append_timers(log, 9)
    checkpoint(log, 90)
    append_timers(log, 12)
    assert log.checkpoint(120) is not None, "it is not done before the power fails"
    append_timers(log, 14)
    log.close()
    left = 12 - taken
    log = TimerLog(tmp_path, log_end=10 * left, queue_end=left, memory_lost=True)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1_000)
    for number in range(checkpoints):
        append_timers(log, 12 + number)
        checkpoint(log, 120 + 10 * number)
    log.close()
    on_disk = 11 + checkpoints if checkpoints else min(left, 9)
    again = TimerLog(tmp_path, log_end=1_000, queue_end=100, memory_lost=True)
    assert again.enqueued == on_disk
    assert waiting(again) == list(range(on_disk))
