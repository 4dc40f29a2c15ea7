"""A system that gives no more threads for a moment loses nothing that was changed, and hangs no one who closes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy, StoreFailed
from raymq.storage.files import disk_health as health_module
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.files.enospc_fallback import ENOSPC_FALLBACK
from raymq.storage.log.retention import FileRemover
from raymq.storage.store import Store
from raymq.storage.tables import consumer_offset_store as progress_module
from raymq.storage.tables import in_flight_messages as in_flight_module
from raymq.storage.tables.in_flight_messages import InFlightMessage
from tests.polling import poll_until
from tests.store_records import SMALL, append, make_record

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)
#: Whose log files are large enough for a thread that prepares them.
LARGE = replace(CONFIG, commitlog_file_bytes=16 << 20)


def test_a_commit_is_done_whether_or_not_a_thread_can_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was in the journal when it raised RuntimeError, and the close raised for a thread that had never begun."""
    monkeypatch.setattr(progress_module, "_FOLD_BYTES", 200)
    monkeypatch.setattr(in_flight_module, "_REWRITE_BYTES", 200)
    queue = "g", "orders", 0
    store = Store.open(tmp_path / "s", CONFIG)
    append(store, *(make_record() for _ in range(100)))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        for number in range(1, 100):
            store.consumer_offsets.commit("g", "orders", 0, number)
            store.in_flight.deliver(queue, number + 1, {number: InFlightMessage(1, 2, 0, 16)})
    assert store.consumer_offsets.get("g", "orders", 0) == 99
    assert store._parts.progress.journal.is_rotated
    for number in range(100):
        store.consumer_offsets.commit("h", "orders", 0, number)
        store.in_flight.acknowledge(queue, [number])
    poll_until(lambda: not store._parts.progress.journal.is_rotated, 10, "it is folded after all")
    store.close()
    with Store.open(tmp_path / "s", CONFIG) as store:
        assert store.consumer_offsets.get("g", "orders", 0) == 99
        assert queue not in store.in_flight.queues


def test_a_store_closes_that_could_not_start_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_FOLD_BYTES", 200)
    store = Store.open(tmp_path / "s", CONFIG)
    append(store, *(make_record() for _ in range(100)))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        for number in range(1, 100):
            store.consumer_offsets.commit("g", "orders", 0, number)
        store.delete_topic_soon("orders")
        store.close()
    with Store.open(tmp_path / "s", CONFIG) as store:
        assert store.topics() == []


def test_an_opening_without_threads_is_a_typed_error_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, 0

    def fails_at(nth: int) -> None:
        def start_some(thread: threading.Thread) -> None:
            nonlocal started
            started += 1
            if started == nth:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_some)

    nth, failed = 0, True
    while failed:
        nth, started = nth + 1, 0
        fails_at(nth)
        try:
            Store.open(tmp_path / "s", CONFIG).close()
        except StoreBusy:
            failed = True
        else:
            failed = False
    assert nth > 3, "log, entries, flush and checkpoint"


def test_what_could_not_be_removed_for_want_of_a_thread_goes_with_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(b"x")
    remover = FileRemover(threading.Lock())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        remover.add([(files[0], None)])
        assert remover.wait(1), "nobody waits for a thread that never began"
    remover.add([(files[1], None)])
    assert remover.wait(10)
    assert not any(file.exists() for file in files)
    remover.stop()


def test_a_marker_that_cannot_be_looked_at_is_a_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raw OSError left the opening."""
    monkeypatch.setattr(health_module, "_MEMORY", tmp_path)
    marker = tmp_path / "healthy"
    DiskHealth(marker).certify()
    stat = Path.stat

    def failing(path: Path, **options: bool) -> object:
        if path == marker:
            raise OSError(5, "Input/output error", str(path))
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", failing)
        with pytest.raises(StoreFailed, match="EIO"):
            DiskHealth(marker)
    assert DiskHealth(marker).was_healthy


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_an_opening_that_made_room_and_then_finds_no_thread_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept the lock, and the thread that prepares files counted as one that runs."""
    start, opening = threading.Thread.start, Store.__init__

    def started(thread: threading.Thread) -> None:
        if thread.name == "raymq-allocate":
            raise RuntimeError("can't start new thread")
        start(thread)

    def opened_by_who_needs_the_room(store: Store, *arguments: object) -> None:
        with monkeypatch.context() as needed:
            needed.setattr(type(ENOSPC_FALLBACK), "was_released", lambda *_: True)
            opening(store, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", started)
        patch.setattr(Store, "__init__", opened_by_who_needs_the_room)
        with pytest.raises(StoreBusy):
            Store.open(tmp_path / "s", LARGE)
    with Store.open(tmp_path / "s", LARGE) as store:
        assert store._log._ahead is not None


def test_a_log_that_found_no_thread_to_prepare_its_files_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "s", LARGE) as store:
        store._log._ahead = None
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            with pytest.raises(StoreBusy):
                store.keep_disk_reserve()
        store.keep_disk_reserve()
        assert store._log._ahead is not None
