"""Test that a folder that cannot be listed fails the start, and nothing is lost."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.timers.timer_log import TimerLog
from tests.faulty_calls import FaultyCalls
from tests.store_records import SMALL, append, bodies, make_record

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


@pytest.fixture(autouse=True)
def no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DESCRIPTOR_RESERVE, "release_one", lambda: False)


@pytest.fixture(scope="module")
def killed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store with several files of each kind, killed before a topic's removal."""
    directory = tmp_path_factory.mktemp("used") / "store"
    store = Store.open(directory, CONFIG)
    for number in range(60):
        append(store, make_record(b"%d" % number * 100, keys=f"k{number}", queue_id=number % 2))
    append(store, make_record(b"gone", topic="gone"))
    store._remover.stop()
    store.delete_topic("gone")
    store._save_checkpoint()
    store._flusher.stop()
    store._abandon()
    return directory


def content(directory: Path, **options: bool) -> tuple[list[bytes], list[int], list[str]]:
    with Store.open(directory, CONFIG, **options) as store:
        found = [len(store.query("orders", f"k{number}", 0, 1 << 60, 9)) for number in range(60)]
        return bodies(store), found, store.topics()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_failed_listing_fails_the_start_without_loss(killed_store: Path, tmp_path: Path, error: int) -> None:
    # Each listing of a start fails once.
    before = content(killed_store, read_only=True)
    nth, failed = 0, True
    while failed:
        nth += 1
        directory = tmp_path / str(nth)
        shutil.copytree(killed_store, directory)
        calls = FaultyCalls("scan", nth, error)
        with replaced(calls):
            message = ""
            try:
                Store.open(directory, CONFIG).close()
            except StoreError as problem:
                message = str(problem)
        assert calls.failed == (errno.errorcode[error] in message)
        failed = calls.failed
        assert content(directory) == before
    assert nth > 5


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_failed_listing_of_timers_fails_the_start(tmp_path: Path, error: int) -> None:
    TimerLog(tmp_path / "timers", log_end=0, queue_end=0, memory_lost=False).close()
    calls = FaultyCalls("scan", 1, error)
    with replaced(calls), pytest.raises(StoreError):
        TimerLog(tmp_path / "timers", log_end=0, queue_end=0, memory_lost=False)
    assert calls.failed


def test_remove_tree_removes_all_or_raises_an_error(tmp_path: Path) -> None:
    # A folder that could not be listed used to be skipped.
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"x")
    for nth in (1, 2):
        with replaced(FaultyCalls("scan", nth, errno.EIO)), pytest.raises(StoreError, match="list"):
            fileutil.remove_tree(tmp_path / "a")
        assert (tmp_path / "a" / "b" / "c").exists()
    fileutil.remove_tree(tmp_path / "a")
    assert fileutil.paths_in(tmp_path) == []
    assert fileutil.paths_in(tmp_path / "none") == []
