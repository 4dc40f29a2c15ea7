"""The timer log's journal and checkpoints: what crashes, damage, full disks and losses of power leave of them."""

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
from tests.unit.storage.timer_logs import START_MS, checkpoint, entry, opened, waiting


@pytest.mark.usefixtures("runs_at_once")
@pytest.mark.parametrize("call", ["open", "write", "fdatasync", "fsync", "rename"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_a_checkpoint_did_not_bring_to_disk_the_next_one_does(tmp_path: Path, call: str, number: int) -> None:
    """It failed, or a broker that stops did not wait for it."""
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0), entry(START_MS + HOUR_MS, 1)]))
    first = log.checkpoint(10)
    assert first is not None
    calls = FaultyCalls(call, number, errno.EIO)
    with file_calls.replaced(calls):
        try:
            first()
        except StoreFailed:
            assert waiting(opened(tmp_path)) == [0, 1]
    log.append(entry(START_MS + 2 * HOUR_MS, 2))
    assert waiting(log) == [0, 1, 2]
    checkpoint(log, 20)
    assert waiting(log) == [0, 1, 2]
    again = opened(tmp_path)
    assert waiting(again) == [0, 1, 2]
    assert again.log_end == 20


def test_half_an_append_is_cut_off(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(entry(START_MS, 0))
    log.append(np.concatenate([entry(START_MS, 1), entry(START_MS, 2)]))
    [path] = tmp_path.glob("journal.*")
    path.write_bytes(path.read_bytes()[:-1])
    log = opened(tmp_path)
    log.append(entry(START_MS, 5))
    assert waiting(log) == [0, 5]
    assert waiting(opened(tmp_path)) == [0, 5]
    assert path.stat().st_size == 2 * (8 + ENTRY.itemsize)


def journal_of_three(folder: Path) -> tuple[bytes, int]:
    """The journal of three appends, and how much of it was there at the last checkpoint: two."""
    log = opened(folder)
    log.append(np.concatenate([entry(START_MS, 0, 10), entry(START_MS, 1, 20)]))
    log.append(entry(START_MS, 0, 30, EntryKind.DELIVERED))
    log.enqueued = 2
    checkpoint(log, 40)
    log.append(entry(START_MS, 2, 50))
    log.close()
    [path] = folder.glob("journal.*")
    return path.read_bytes(), path.stat().st_size - 8 - ENTRY.itemsize


def test_any_byte_of_a_journal_that_flips_is_noticed(tmp_path: Path) -> None:
    """An entry's due time, offset or kind, believed as it was found, lost a message or delivered it twice.

    What was there at the last checkpoint is told anew with all the rest; what came since then, from there on.
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
        log = opened(folder)
        told = (log.enqueued, log.log_end, waiting(log))
        assert told == ((0, 0, []) if place < saved else (2, 40, [1]))
        log.append(entry(START_MS, 7))
        log.close()
        assert waiting(opened(folder)) == [*told[2], 7]


@pytest.mark.parametrize("length", range(0, 184, 7))
def test_a_journal_that_is_shorter_than_it_was_is_noticed(tmp_path: Path, length: int) -> None:
    content, saved = journal_of_three(tmp_path)
    [path] = tmp_path.glob("journal.*")
    path.write_bytes(content[:length])
    log = opened(tmp_path)
    assert (log.enqueued, waiting(log)) == ((0, []) if length < saved else (2, [1]))


def test_a_journal_that_is_missing_is_noticed(tmp_path: Path) -> None:
    journal_of_three(tmp_path)
    [path] = tmp_path.glob("journal.*")
    path.unlink()
    assert opened(tmp_path).enqueued == 0


def test_journals_of_two_processes_outlive_a_loss_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was about to become a run when the process died: it was cut to nothing, though the state spoke of it."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 2)
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0, 1), entry(START_MS, 1, 2)]))
    log.enqueued = 2
    assert log.checkpoint(3) is not None  # and the process dies before it is called
    log.append(entry(START_MS, 2, 4))
    log.close()
    assert len(list(tmp_path.glob("journal.*"))) == 2
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1 << 15)
    log = opened(tmp_path)
    log.enqueued = 3
    checkpoint(log, 5)
    log.append(entry(START_MS, 3, 6))
    log.close()
    log = TimerLog(tmp_path, log_end=5, memory_lost=True)
    assert (log.enqueued, waiting(log)) == (3, [0, 1, 2])


@pytest.mark.parametrize("in_runs", [False, True])
def test_after_a_crash_entries_of_lost_records_are_dropped(
    tmp_path: Path, in_runs: bool, request: pytest.FixtureRequest
) -> None:
    if in_runs:
        request.getfixturevalue("runs_at_once")
    log = opened(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0, place=10), entry(START_MS, 1, place=200)]))
    log.append(entry(START_MS, 0, place=100, kind=EntryKind.DELIVERED))
    checkpoint(log, 300)
    assert len(log.runs) == in_runs
    # The copy and the second message were in the part of the log that the machine lost: the first one waits again.
    lost = opened(tmp_path, log_end=100)
    assert waiting(lost) == [0]
    assert lost.ended_between(0, 9).tolist() == []
    assert waiting(opened(tmp_path, log_end=1 << 40)) == [0]


def test_a_full_disk_leaves_whole_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
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
    assert waiting(opened(tmp_path)) == [0, 3]


@pytest.mark.usefixtures("runs_at_once")
@pytest.mark.parametrize(
    ("call", "error"), [("write", errno.ENOSPC), ("open", errno.EMFILE), ("truncate", errno.ENOSPC)]
)
def test_checkpoints_that_cannot_be_done_fill_no_disk(tmp_path: Path, call: str, error: int) -> None:
    """Each is tried again a little later, with files of other names."""
    log = opened(tmp_path)
    log.append(np.concatenate([entry(HOUR_MS + n, n) for n in range(40)]))
    for nth in range(1, 20):
        calls = FaultyCalls(call, nth, error, lasting=True)
        write = log.checkpoint(1 << 40)
        if write is None:  # the last one was done, but for what it leaves to be removed
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
    assert waiting(opened(tmp_path)) == list(range(40))


def test_a_loss_of_memory_takes_the_journal_back_to_what_was_synced(tmp_path: Path) -> None:
    """A page that never came to the disk is full of zeros, and an entry of zeros would end what waits at offset 0."""
    log = opened(tmp_path)
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
def test_a_second_loss_of_power_takes_nothing_that_was_on_disk_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, checkpoints: int
) -> None:
    """The first one came when a journal was becoming a run: two journals count then, each as far as it was synced."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 10)

    def tell(log: TimerLog, stop: int) -> None:
        log.append(np.concatenate([entry(HOUR_MS + n, n, 10 * n) for n in range(log.enqueued, stop)]))
        log.enqueued = stop

    log = opened(tmp_path)
    tell(log, 9)
    checkpoint(log, 90)
    tell(log, 12)
    assert log.checkpoint(120) is not None, "it is not done before the power fails"
    tell(log, 14)
    log.close()
    left = 12 - taken
    log = TimerLog(tmp_path, log_end=10 * left, queue_end=left, memory_lost=True)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1_000)
    for number in range(checkpoints):
        tell(log, 12 + number)
        checkpoint(log, 120 + 10 * number)
    log.close()
    on_disk = 11 + checkpoints if checkpoints else min(left, 9)
    again = TimerLog(tmp_path, log_end=1_000, queue_end=100, memory_lost=True)
    assert again.enqueued == on_disk
    assert waiting(again) == list(range(on_disk))
