"""Test that a temporary lack of threads loses no change and blocks no close."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy, StoreFailed
from raymq.storage.files import disk_health as health_module
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.files.enospc_fallback import ENOSPC_FALLBACK
from raymq.storage.journal import state_journal
from raymq.storage.log.retention import FileRemover
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from tests.polling import poll_until
from tests.store_records import SMALL, append, make_record

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)
#: Log files that are large enough for a preparing thread.
LARGE = replace(CONFIG, commitlog_file_bytes=16 << 20)


def test_commit_succeeds_without_a_thread_for_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The commit was in the journal when it raised RuntimeError, and close raised for a thread that never started.
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 200)
    queue = "g", "orders", 0
    store = Store.open(tmp_path / "s", CONFIG)
    append(store, *(make_record() for _ in range(100)))
    snapshots = set((tmp_path / "s" / "raymq" / "state").glob("snapshot-*"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        for number in range(1, 100):
            store.consumer_offsets.commit("g", "orders", 0, number)
            store.in_flight.deliver(queue, number + 1, {number: InFlightMessage(1, 2, 0, 16)})
    assert store.consumer_offsets.get("g", "orders", 0) == 99
    assert set((tmp_path / "s" / "raymq" / "state").glob("snapshot-*")) == snapshots
    for number in range(100):
        store.consumer_offsets.commit("h", "orders", 0, number)
        store.in_flight.acknowledge(queue, [number])
    poll_until(
        lambda: set((tmp_path / "s" / "raymq" / "state").glob("snapshot-*")) > snapshots, 10, "it is written after all"
    )
    store.close()
    with Store.open(tmp_path / "s", CONFIG) as store:
        assert store.consumer_offsets.get("g", "orders", 0) == 99
        assert queue not in store.in_flight.queues


def test_store_closes_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 200)
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


def test_open_without_threads_raises_store_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_removal_without_a_thread_is_done_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unreadable_health_marker_raises_store_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The open used to raise a raw OSError.
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


def test_failed_open_after_freeing_space_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The failed open kept the lock, and counted the preparing thread as running.
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


def test_preallocation_thread_is_retried_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "s", LARGE) as store:
        store._log._ahead = None
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            with pytest.raises(StoreBusy):
                store.keep_disk_reserve()
        store.keep_disk_reserve()
        assert store._log._ahead is not None
