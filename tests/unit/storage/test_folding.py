"""Test that offsets are folded beside commits, and that no kill takes any back (fault 13.28)."""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.tables import consumer_offset_store as progress_module
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore
from tests.faulty_calls import FaultyCalls


class HangingFile(FileCalls):
    """Block syncs of files with `name` until `going`; count the main thread's syncs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reached = threading.Event()
        self.going = threading.Event()
        self.own_syncs = 0

    def fsync(self, fd: int) -> None:
        self.own_syncs += threading.current_thread() is threading.main_thread()
        if self._name in os.readlink(f"/proc/self/fd/{fd}"):
            self.reached.set()
            assert self.going.wait(30)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)


@pytest.fixture(autouse=True)
def small_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_FOLD_BYTES", 400)


def open_offset_store(directory: Path) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(directory / "config", directory / "raymq" / "progress.journal", writable=True)


def state(progress: ConsumerOffsetStore) -> object:
    return progress.consumers, progress.resets, progress.delays, progress.log_end


def reopen_after_kill(directory: Path, target: Path) -> object:
    shutil.copytree(directory, target)
    again = open_offset_store(target)
    found = state(again)
    again.close(fold=False)
    once_more = open_offset_store(target)
    assert state(once_more) == found
    once_more.close(fold=False)
    shutil.rmtree(target)
    return found


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
def test_commits_continue_while_a_fold_waits_for_the_disk(tmp_path: Path, name: str) -> None:
    progress = open_offset_store(tmp_path / "s")
    disk = HangingFile(name)
    expected = []
    with replaced(disk):
        number = 0
        while not disk.reached.is_set():
            number += 1
            progress.consumer_offsets.commit("g", "t", number % 5, number)
            progress.consumer_offsets.reset(f"g{number % 7}", "t", 0, number)
            assert disk.reached.wait(0.001) or number < 10_000
        shutil.copytree(tmp_path / "s", tmp_path / "0")
        expected.append(copy.deepcopy(state(progress)))
        for _ in range(100):
            number += 1
            progress.consumer_offsets.commit("g", "t", number % 5, number)
            progress.consumer_offsets.delete(f"g{number % 7}", "t")
            progress.delay_offsets.commit(number % 3, number, 10 * number)
        shutil.copytree(tmp_path / "s", tmp_path / "1")
        expected.append(copy.deepcopy(state(progress)))
        assert disk.own_syncs == 0
        disk.going.set()
        progress.consumer_offsets.commit("last", "t", 0, 1)
        progress._wait()
    for each, known in enumerate(expected):
        assert reopen_after_kill(tmp_path / str(each), tmp_path / "copy") == known
    assert reopen_after_kill(tmp_path / "s", tmp_path / "copy") == state(progress)
    progress.close(fold=True)
    assert reopen_after_kill(tmp_path / "s", tmp_path / "copy") == state(progress)
    assert (tmp_path / "s" / "raymq" / "progress.journal").stat().st_size == 0
    assert not (tmp_path / "s" / "raymq" / "progress.journal.beside").exists()


def test_commits_and_folds_do_not_wait_for_a_journal_sync(tmp_path: Path) -> None:
    progress = open_offset_store(tmp_path)
    progress.consumer_offsets.commit("g", "t", 0, 1)
    disk = HangingFile("progress.journal")
    with replaced(disk):
        checkpoint = threading.Thread(target=progress.journal.sync)
        checkpoint.start()
        assert disk.reached.wait(30)
        for number in range(2, 200):
            progress.consumer_offsets.commit("g", "t", 0, number)
        assert checkpoint.is_alive()
        disk.going.set()
        checkpoint.join()
    progress.close(fold=True)
    assert open_offset_store(tmp_path).consumers == {"g": {"t": {0: 199}}}


def test_failed_fold_is_retried_without_loss(tmp_path: Path) -> None:
    progress = open_offset_store(tmp_path / "s")
    rng = random.Random(5)
    for kind in ("rename", "open", "fsync"):
        with replaced(FaultyCalls(kind, 1, errno.ENOSPC, lasting=True)):
            for number in range(200):
                progress.consumer_offsets.commit("g", f"t{rng.randrange(9)}", 0, number)
            progress._wait()
        assert reopen_after_kill(tmp_path / "s", tmp_path / "copy") == state(progress)
    for number in range(100):
        progress.consumer_offsets.commit("g", f"t{rng.randrange(9)}", 0, 1000 + number)
    progress._wait()
    assert reopen_after_kill(tmp_path / "s", tmp_path / "copy") == state(progress)
    progress.close(fold=True)


def test_fold_interval_grows_with_the_table(tmp_path: Path) -> None:
    # Each fold writes the whole table: the next one is due when the journal has grown by twice the table's size.
    progress = open_offset_store(tmp_path)
    for number in range(300):
        progress.consumer_offsets.commit(f"group{number}", "t", 0, 1)
    progress.fold()
    saved, version = len(progress._last_saved or b""), progress._version.counter
    assert saved > 10 * progress_module._FOLD_BYTES
    grown = number = 0
    while progress._version.counter == version:
        grown, number = progress.journal.length, number + 1
        progress.consumer_offsets.commit("group0", "t", 0, 10_000 + number)
    assert grown > 1.9 * saved
    progress.close(fold=True)
