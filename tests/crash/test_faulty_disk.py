"""Fail every file system call once, at every place: short writes, no space, input/output errors."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.files.fileutil import write_all
from raymq.storage.files.mapped_file_queue import MappedFileQueue
from raymq.storage.journal import state_journal
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.power_loss import Disk
from tests.faulty_calls import KINDS, FaultyCalls, UnsyncedCalls
from tests.store_records import SMALL, append, bodies, make_record, write_entries

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


@dataclass
class Client:
    """Use a store as a broker would, continue after errors, and record what was acknowledged."""

    stored: int = 0
    flushed: int = 0
    committed: int = 0
    topic: bool = False
    topic_flushed: bool = False
    errors: list[StoreError] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.errors = []

    def attempt(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except StoreError as error:
            self.errors.append(error)
            return False
        return True

    def use(self, directory: Path) -> None:
        """Open, work, close; each of these may fail."""
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            try:
                store = Store.open(directory, CONFIG)
                stack.callback(lambda: self.attempt(store.close))
            except StoreError as error:
                self.errors.append(error)
                return
            for count in (1, 30, 1, 14):
                # A number is reused if none of its records was stored; a partly stored one is the store's last.
                records = [make_record(b"%d" % (self.stored + i), keys=f"k{self.stored + i}") for i in range(count)]
                if self.attempt(lambda records=records: append(store, *records)):  # type: ignore[misc]
                    self.stored += count
                if self.attempt(store.flush):
                    self.flushed = self.stored
                if self.attempt(lambda: store.consumer_offsets.commit("g", "orders", 0, self.stored)):
                    self.committed = self.stored
            self.topic |= self.attempt(lambda: store.topic_configs.put(TopicConfig("new", 1, 1)))
            if self.attempt(store._save_checkpoint):
                self.flushed = self.stored
                self.topic_flushed = self.topic
            if self.attempt(lambda: append(store, make_record(b"%d" % self.stored, keys=f"k{self.stored}"))):
                self.stored += 1
            if self.attempt(store.flush):
                self.flushed = self.stored


def check_store(directory: Path, client: Client, *, durable: bool) -> None:
    """Check that acknowledged data is there, opened on a working disk; `durable`: after a power loss."""
    with Store.open(directory, CONFIG) as store:
        assert store.recovery.corruption == []
        found = [int(body) for body in bodies(store)] if store.topics() else []
        least = client.flushed if durable else client.stored
        assert found == list(range(len(found)))
        assert len(found) >= least
        for number in range(least):
            if number < 46:
                assert [r.body for r in store.query("orders", f"k{number}", 0, 1 << 60, 5)] == [b"%d" % number]
        if not durable:
            assert (store.consumer_offsets.get("g", "orders", 0) or 0) >= client.committed
        promised = client.topic_flushed if durable else client.topic
        assert not promised or store.topic_configs.get("new") is not None
        result = append(store, make_record(b"%d" % len(found)))
        assert result.queue_offsets.tolist() == [len(found)]
        store.flush()


@pytest.fixture(autouse=True)
def fold_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 60)


def call_faults() -> Iterator[tuple[str, int]]:
    yield "short_write", 0
    yield "short_write", errno.ENOSPC
    for kind in KINDS:
        yield kind, errno.EIO
        if kind not in ("unlink", "remove_folder"):
            yield kind, errno.ENOSPC


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(("kind", "error"), list(call_faults()))
def test_acknowledged_data_survives_each_failed_call(tmp_path: Path, kind: str, error: int) -> None:
    nth = 0
    calls = FaultyCalls()
    while nth == 0 or calls.failed:
        nth += 1
        directory = tmp_path / str(nth)
        client = Client()
        calls = FaultyCalls(kind, nth, error, real=UnsyncedCalls())
        with replaced(calls):
            client.use(directory)
        if directory.exists():
            check_store(directory, client, durable=False)
            shutil.rmtree(directory)
        for each in client.errors:
            assert each.remedy
            assert isinstance(each, StoreFull | StoreFailed)
        if kind == "short_write" and not error:
            assert client.errors == []
    assert nth > 1 or kind == "remove_folder"


class FolderWithoutSpace(FileCalls):
    """Refuse new blocks for the files in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.refused = 0

    def allocate(self, fd: int, start: int, length: int) -> None:
        if f"/{self._folder}/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, start, length)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        if f"/{self._folder}/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, content)


@pytest.mark.parametrize("at_once", [1, 14])
@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index"])
def test_store_recovers_when_disk_has_space_again(tmp_path: Path, part: str, at_once: int) -> None:
    """Appends are refused without space, wherever that shows first, and succeed once there is space."""
    with Store.open(tmp_path, CONFIG) as store:

        def put(first: int) -> int:
            append(store, *(make_record(b"%d" % n, keys=f"k{n}") for n in range(first, first + at_once)))
            return first + at_once

        stored, refused = put(put(0)), 0
        for _ in range(60):
            with replaced(FolderWithoutSpace(part)):
                try:
                    stored = put(stored)
                    write_entries(store)
                except StoreFull:
                    refused += 1
            stored = put(stored)
        assert refused
        assert [int(body) for body in bodies(store)] == list(range(stored))
    with Store.open(tmp_path, CONFIG) as store:
        assert store.recovery.clean
        assert [int(body) for body in bodies(store)] == list(range(stored))
        for number in range(0, stored, 7):
            assert [r.body for r in store.query("orders", f"k{number}", 0, 1 << 60, 5)] == [b"%d" % number]


@pytest.mark.parametrize("part", ["log", "queue or index", "journal"])
def test_failed_sync_refuses_writes_until_reopen(tmp_path: Path, part: str) -> None:
    store = Store.open(tmp_path, CONFIG)
    append(store, make_record(b"0", keys="k"))
    store.consumer_offsets.commit("g", "orders", 0, 1)
    if part != "log":
        store.flush()
    calls = FaultyCalls("fdatasync", {"log": 1, "queue or index": 1, "journal": 3}[part], errno.EIO)
    with replaced(calls), pytest.raises(StoreFailed, match="EIO"):
        store._save_checkpoint()
    # The disk works again, but the store still refuses writes.
    for work in (store.flush, store._save_checkpoint, lambda: append(store, make_record(b"1"))):
        with pytest.raises(StoreFailed) as caught:
            work()
        assert "open it again" in str(caught.value)
    with store.read("orders", 0, 0) as lease:
        assert len(lease) == 1
    store.close()
    assert (tmp_path / "abort").exists()
    with Store.open(tmp_path, CONFIG) as store:
        assert not store.recovery.clean
        assert bodies(store) == [b"0"]
        append(store, make_record(b"1"))


def test_open_after_failed_sync_rewrites_unsynced_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path, CONFIG)
    append(store, make_record(b"0"))
    store._save_checkpoint()
    flushed = store.flushed_offset
    append(store, make_record(b"1"))
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        store.flush()
    end = store.max_physical_offset
    store.close()
    rewritten: list[tuple[int, int]] = []
    real = MappedFileQueue.rewrite

    def spy(self: MappedFileQueue, begin: int, end: int) -> None:
        rewritten.append((begin, end))
        real(self, begin, end)

    monkeypatch.setattr(MappedFileQueue, "rewrite", spy)
    with Store.open(tmp_path, CONFIG):
        pass
    assert rewritten == [(flushed, end)]
    with Store.open(tmp_path, CONFIG):
        pass
    assert len(rewritten) == 1


@pytest.mark.long
def test_flushed_data_survives_failed_sync_and_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of a failed sync are lost, whatever later syncs return: they were never reported as durable."""
    boots = [0]
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: f"boot {boots[0]}")
    random_ = random.Random(1)
    fail_at = 0
    failed = True
    while failed:
        fail_at += 1
        directory, after = tmp_path / "s", tmp_path / "after"
        directory.mkdir()
        client = Client()
        disk = Disk(directory, fail_at)
        with replaced(disk):
            client.use(directory)
        failed = disk.failed
        disk.after_power_loss(after, random_, random_.choice((0.0, 0.5)))
        disk.close()
        boots[0] += 1
        with replaced(UnsyncedCalls()):
            check_store(after, client, durable=True)
        shutil.rmtree(directory)
        shutil.rmtree(after)
    assert fail_at > 30


def test_short_write_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "f"
    calls = FaultyCalls("short_write", 1, 0)
    with replaced(calls), path.open("wb") as stream:
        write_all(stream.fileno(), bytes(range(200)), path)
    assert calls.counts["write"] == 2
    assert path.read_bytes() == bytes(range(200))
