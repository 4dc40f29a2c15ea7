"""Test that queue entries are written to disk beside the appends (fault 13.23)."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError, StoreFull
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.log import entry_writer
from raymq.storage.store import Store
from tests.polling import poll_until
from tests.store_records import SMALL, append, bodies, make_record

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 20, index_entries=10_000, flush_interval_ms=3_600_000)


class Watched(FileCalls):
    """Record the callers of operations below consumequeue/, which may hang or fail."""

    def __init__(self) -> None:
        self.callers: set[int] = set()
        self.syncs = 0
        self.going = threading.Event()
        self.going.set()
        self.error = 0
        self.failure: Exception | None = None

    def _at(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            self.callers.add(threading.get_ident())
            assert self.going.wait(30)
            if self.failure is not None:
                raise self.failure
            if self.error:
                raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int) -> int:
        self._at(path)
        return super().open(path, flags)

    def make_folder(self, path: Path) -> None:
        self._at(path)
        super().make_folder(path)

    def allocate(self, fd: int, start: int, length: int) -> None:
        self._at(Path(f"/proc/self/fd/{fd}").resolve())
        super().allocate(fd, start, length)

    def fsync(self, fd: int) -> None:
        self.syncs += threading.get_ident() == threading.main_thread().ident

    def fdatasync(self, fd: int) -> None:
        self.syncs += threading.get_ident() == threading.main_thread().ident


@pytest.fixture
def calls() -> Iterator[Watched]:
    watched = Watched()
    with replaced(watched):
        yield watched
        watched.going.set()


def queue_files(directory: Path) -> list[Path]:
    return sorted((directory / "consumequeue").glob("*/*/*"))


def test_append_creates_no_queue_file_itself(tmp_path: Path, calls: Watched) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        calls.syncs = 0
        for number in range(3 * CONFIG.consume_queue_file_entries):
            append(store, make_record(b"%d" % number, topic="single"))
            append(store, *(make_record(b"%d" % number, topic=f"of-{number}", queue_id=q) for q in range(20)))
        poll_until(lambda: len(queue_files(tmp_path)) == 3 + 20 * 3 * CONFIG.consume_queue_file_entries)
        assert calls.callers
        assert threading.get_ident() not in calls.callers
        assert calls.syncs == 0


def test_appends_and_reads_continue_while_the_disk_hangs(tmp_path: Path, calls: Watched) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        calls.going.clear()
        for number in range(50):  # three files of the queue
            append(store, make_record(b"%d" % number))
        poll_until(lambda: calls.callers)
        append(store, *(make_record(b"%d" % number) for number in range(50, 80)))
        assert bodies(store) == [b"%d" % number for number in range(80)]
        assert queue_files(tmp_path) == []
        assert store.entries("orders", 0, 70, 100)[0].tolist() == [
            record.physical_offset for record in store.walk(0) if record.queue_offset >= 70
        ]
        calls.going.set()
        poll_until(lambda: len(queue_files(tmp_path)) == 5)
        assert bodies(store) == [b"%d" % number for number in range(80)]
        append(store, make_record(b"80"))
        assert bodies(store) == [b"%d" % number for number in range(81)]


def test_entries_lost_from_memory_are_rebuilt_from_the_log(tmp_path: Path, calls: Watched) -> None:
    with Store.open(tmp_path / "s", CONFIG) as store:
        append(store, make_record(b"0"))
        store._save_checkpoint()
        calls.going.clear()
        for number in range(1, 40):
            append(store, make_record(b"%d" % number))
            append(store, make_record(b"%d" % number, topic="other"))
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
        calls.going.set()
    assert [path.parent.parent.name for path in queue_files(tmp_path / "killed")] == ["orders"]
    with Store.open(tmp_path / "killed", CONFIG, read_only=True) as store:
        assert bodies(store) == [b"%d" % number for number in range(40)]
        assert bodies(store, "other") == [b"%d" % number for number in range(1, 40)]
    with Store.open(tmp_path / "killed", CONFIG) as store:
        assert bodies(store) == [b"%d" % number for number in range(40)]
        assert bodies(store, "other") == [b"%d" % number for number in range(1, 40)]


def test_checkpoint_writes_all_queue_entries(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", CONFIG) as store:
        for number in range(40):
            append(store, make_record(b"%d" % number, topic=f"t{number}"))
        store._save_checkpoint()
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
    assert len(queue_files(tmp_path / "copy")) == 40
    assert all(path.stat().st_size == 20 * CONFIG.consume_queue_file_entries for path in queue_files(tmp_path / "copy"))


def test_full_disk_refuses_appends_and_loses_no_entries(tmp_path: Path, calls: Watched) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        calls.error = errno.ENOSPC
        stored = 0

        def refused() -> bool:
            nonlocal stored
            try:
                append(store, make_record(b"%d" % stored))
            except StoreFull:
                return True
            stored += 1
            return False

        poll_until(refused)
        with pytest.raises(StoreFull):
            append(store, make_record(topic="another"))
        end = store.max_physical_offset
        assert refused()
        assert store.max_physical_offset == end
        assert bodies(store) == [b"%d" % number for number in range(stored)]
        calls.error = 0
        assert not refused()
        poll_until(lambda: queue_files(tmp_path))
        assert bodies(store) == [b"%d" % number for number in range(stored)]


def test_append_waits_for_too_many_unwritten_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_writer, "_MAX_UNWRITTEN_BYTES", 400)
    monkeypatch.setattr(entry_writer, "_PAUSE_SECONDS", 3_600.0)
    store = Store.open(tmp_path, CONFIG)
    for number in range(100):
        append(store, make_record(b"%d" % number, queue_id=number % 2))
    assert len(queue_files(tmp_path)) > 2
    assert bodies(store) == [b"%d" % number for number in range(0, 100, 2)]
    store.close()


def test_many_queues_use_bounded_memory_and_a_block_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_writer, "_REMEMBERING", 8)
    with Store.open(tmp_path, replace(CONFIG, consume_queue_file_entries=300_000)) as store:
        for number in range(64):
            append(store, make_record(b"%d" % number, topic=f"t{number}"))
        poll_until(lambda: len(queue_files(tmp_path)) == 64)
        poll_until(lambda: sum(bool(queue._tail) for queue in store._dispatcher.queues.values()) <= 8)
        for number in range(64):
            assert bodies(store, f"t{number}") == [b"%d" % number]
        store._save_checkpoint()
        used = sum(path.stat().st_blocks * 512 for path in queue_files(tmp_path))
        assert used <= 64 * 4096


def test_entries_of_a_deleted_topic_create_no_folder(tmp_path: Path, calls: Watched) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        append(store, make_record(topic="kept"))
        append(store, make_record(topic="gone"))
        store.delete_topic("gone")
        append(store, make_record(b"again", topic="gone"))
        assert bodies(store, "gone") == [b"again"]
        store.delete_topic("gone")
        append(store, make_record(topic="later"))
        poll_until(lambda: [path.parent.parent.name for path in queue_files(tmp_path)] == ["kept", "later"])
    with Store.open(tmp_path, CONFIG) as store:
        assert store.topics() == ["kept", "later"]


def test_writer_thread_survives_failures(tmp_path: Path, calls: Watched) -> None:
    # Meanwhile appends are refused with a typed error, and no entry is lost.
    with Store.open(tmp_path, CONFIG) as store:
        calls.failure = MemoryError("no room")
        append(store, make_record(b"0"))
        poll_until(lambda: store._dispatcher.entry_writer._failure is not None)
        with pytest.raises(StoreError, match="no room"):
            append(store, make_record(b"refused"))
        calls.failure = None
        poll_until(lambda: len(queue_files(tmp_path)) == 1)
        append(store, make_record(b"1"))
        assert bodies(store) == [b"0", b"1"]
