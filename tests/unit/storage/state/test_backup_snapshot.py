"""Test that a backup snapshot is of one moment, whatever changes while it is read."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.storage.errors import StateMismatch, StoreBusy
from raymq.storage.files import file_calls, fileutil
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.state import backup_snapshot
from raymq.storage.state.backup_snapshot import BackupSnapshot, read_snapshot_part
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_snapshot import encode_parts
from raymq.storage.store import Store
from tests.faulty_calls import UnsyncedCalls
from tests.state_shipping import state_of
from tests.store_records import SMALL
from tests.store_replication import fill

LARGE = bytes(range(256)) * 8_000  # read in several pieces


def content_of(frozen: BackupSnapshot) -> dict[str, bytes | None]:
    """Return the files that the snapshot has."""
    found: dict[str, bytes | None] = {}
    for part in frozen.parts():
        assert len(part) < 1 << 20
        for path, at, content in read_snapshot_part(part):
            if at is None:
                found[path] = None
            else:
                before = found.setdefault(path, b"") or b""
                assert len(before) == at
                found[path] = before + content
    return found


def append(path: Path) -> None:
    fd = fileutil.open_for_append(path)
    fileutil.write_all(fd, b"more", path)
    fileutil.close(fd)


def truncate(path: Path) -> None:
    fd = fileutil.open_file(path, os.O_RDWR)
    fileutil.truncate(fd, 3, path)
    fileutil.close(fd)


def move_folder(path: Path) -> None:
    fileutil.move(path.parent, path.parent.with_name("elsewhere"))


CHANGES: list[Callable[[Path], object]] = [
    append,
    truncate,
    lambda path: fileutil.write_at(path, 0, 1, b"other"),
    lambda path: fileutil.replace(path, b"new"),
    fileutil.unlink,
    lambda path: fileutil.remove_tree(path.parent),
    lambda path: fileutil.close(fileutil.open_file(path, os.O_RDWR | os.O_TRUNC)),
    move_folder,
    lambda path: fileutil.make_folder(path.parent / "new"),
]


def test_backup_contains_the_timer_log(tmp_path: Path) -> None:
    """Without it a restored broker would search its whole log before its first delivery."""
    fileutil.make_folder(tmp_path / "raymq" / "timers")
    fileutil.replace(tmp_path / "raymq" / "timers" / "run.0000000001", LARGE)
    frozen = BackupSnapshot(tmp_path, lambda: 0)
    fileutil.remove_tree(tmp_path / "raymq" / "timers")
    assert content_of(frozen) == {"raymq/timers": None, "raymq/timers/run.0000000001": LARGE}
    frozen.close()


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_snapshot_do_not_reach_it(
    tmp_path: Path, change: Callable[[Path], object], content: bytes
) -> None:
    path = tmp_path / "raymq" / "folder" / "file"
    fileutil.make_folder(path.parent, durable=False)
    for name in ("file", "other"):
        path.with_name(name).write_bytes(content)
    before = state_of(tmp_path)
    for times in (1, 2):
        frozen = BackupSnapshot(tmp_path, lambda: 7)
        for _ in range(times):
            if path.exists():
                change(path)
        assert content_of(frozen) == before
        assert frozen.log_end == 7
        frozen.close()
        fileutil.remove_tree(tmp_path / "raymq")
        fileutil.make_folder(path.parent, durable=False)
        for name in ("file", "other"):
            path.with_name(name).write_bytes(content)


def test_file_truncated_while_it_is_read_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "config" / "file"
    path.parent.mkdir()
    path.write_bytes(LARGE)
    frozen = BackupSnapshot(tmp_path, lambda: 0)
    parts = frozen.parts()
    first = read_snapshot_part(next(parts))
    truncate(path)
    rest = [entry for part in parts for entry in read_snapshot_part(part)]
    assert b"".join(content for _, _, content in [*first, *rest]) == LARGE
    frozen.close()


def test_snapshot_failure_fails_the_backup_but_not_the_write(tmp_path: Path) -> None:
    path = tmp_path / "config" / "file"
    path.parent.mkdir()
    path.write_bytes(LARGE)

    class NoneLeft(FileCalls):
        def open(self, path: Path, flags: int) -> int:
            if path.name == "file" and not flags & os.O_TRUNC:
                raise OSError(errno.EMFILE, "none left")
            return super().open(path, flags)

    with replaced(NoneLeft()):
        frozen = BackupSnapshot(tmp_path, lambda: 0)
        fileutil.replace(path, b"new")
        assert path.read_bytes() == b"new"
        with pytest.raises(StoreBusy):
            content_of(frozen)
        frozen.close()


def test_closing_in_any_order_restores_the_file_calls(tmp_path: Path) -> None:
    plain = file_calls.current
    first, second = (BackupSnapshot(tmp_path / name, lambda: 0) for name in "ab")
    recorder = StateRecorder.begin(tmp_path / "c", log_end=lambda: 0)
    third = BackupSnapshot(tmp_path / "c", lambda: 0)
    first.close()
    recorder.stop()
    third.close()
    first.close()
    second.close()
    assert file_calls.current is plain


def test_snapshot_waits_for_a_running_file_call(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    class Slow(FileCalls):
        def rename(self, source: Path, target: Path) -> None:
            began.set()
            go_on.wait(10)
            super().rename(source, target)

    (tmp_path / "raymq").mkdir()
    (tmp_path / "raymq" / "a").write_bytes(b"a")
    with replaced(Slow()):
        moving = threading.Thread(target=fileutil.move, args=(tmp_path / "raymq" / "a", tmp_path / "raymq" / "b"))
        moving.start()
        began.wait(10)
        threading.Timer(0.05, go_on.set).start()
        frozen = BackupSnapshot(tmp_path, lambda: 0)
        assert content_of(frozen) == {"raymq/b": b"a"}
        frozen.close()
        moving.join()


def test_hanging_file_call_raises_store_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_snapshot, "_WAIT_SECONDS", 0.05)
    began, go_on = threading.Event(), threading.Event()

    class Hanging(FileCalls):
        def unlink(self, path: Path) -> None:
            began.set()
            go_on.wait(10)

    with replaced(Hanging()) as _:
        plain = file_calls.current
        hanging = threading.Thread(target=fileutil.unlink, args=(tmp_path / "a",))
        hanging.start()
        began.wait(10)
        with pytest.raises(StoreBusy, match="hang"):
            BackupSnapshot(tmp_path, lambda: 0)
        assert file_calls.current is plain
        go_on.set()
        hanging.join()


@pytest.mark.parametrize(
    "path", ["raymq/replica.json", "raymq/broker.json", "lock", "commitlog/x", "../x", "config/../x"]
)
def test_part_with_a_path_outside_the_state_is_refused(path: str) -> None:
    with pytest.raises(StateMismatch):
        read_snapshot_part(next(encode_parts([[path, 0, b"x"]])))


def test_snapshot_of_concurrent_journals_is_one_moment(tmp_path: Path) -> None:
    # Each thread writes a number to one file, then to the other: the first file is never behind.
    (tmp_path / "raymq").mkdir()
    over = threading.Event()

    def write(name: str) -> None:
        first, second = (tmp_path / "raymq" / f"{name}{which}" for which in "ab")
        number = 0
        while not over.is_set():
            number += 1
            for path in (first, second):
                fd = fileutil.open_for_append(path)
                fileutil.write_all(fd, number.to_bytes(8, "big"), path)
                fileutil.close(fd)
                if number % 50 == 0:
                    fileutil.replace(path, number.to_bytes(8, "big"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
    with replaced(UnsyncedCalls()):
        for thread in threads:
            thread.start()
        random_ = random.Random(1)
        try:
            for _ in range(40):
                over.wait(random_.random() / 200)
                frozen = BackupSnapshot(tmp_path, lambda: 0)
                found = content_of(frozen)
                frozen.close()
                for name in "xyz":
                    first, second = (int.from_bytes((found.get(f"raymq/{name}{w}") or b"")[-8:], "big") for w in "ab")
                    assert first - 1 <= second <= first
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_snapshot_of_an_open_store_has_its_present_state(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        fill(store, 20)
        store.consumer_offsets.commit("g", "orders", 0, 1)
        before, end = state_of(tmp_path), store.max_physical_offset
        frozen = BackupSnapshot(tmp_path, lambda: store.max_physical_offset)
        store.consumer_offsets.commit("g", "orders", 0, 2)
        store.delete_topic("orders")
        fill(store, 20, seed=1)
        found = content_of(frozen)
        frozen.close()
    assert frozen.log_end == end
    assert found.pop("raymq/state.json") is not None
    assert found.pop("checkpoint") is not None
    assert found == before
