"""Test that a topic is deleted beside the store's threads, and stays deleted (fault 13.28)."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreFailed, StoreFull
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.journal import state_journal
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls, UnsyncedCalls
from tests.polling import poll_until
from tests.state_journals import wait_for_compaction
from tests.store_records import SMALL, append, bodies, make_record, write_entries

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 20, index_entries=10_000, flush_interval_ms=3_600_000)


class HangingQueues(FileCalls):
    """Block syncs of queue files until `going`; count the main thread's syncs."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.going = threading.Event()
        self.syncs = 0

    def fsync(self, fd: int) -> None:
        self.syncs += threading.current_thread() is threading.main_thread()

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)
        if "/consumequeue/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.reached.set()
            assert self.going.wait(30)


class OwnCalls(UnsyncedCalls):
    """Count the main thread's calls that wait for the disk while it is watched."""

    def __init__(self) -> None:
        self._watched = False
        self.waits = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self._watched = True
        yield
        self._watched = False

    def fsync(self, fd: int) -> None:
        self.waits += self._watched and threading.current_thread() is threading.main_thread()

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)


def open_filled_store(directory: Path, queues: int) -> Store:
    store = Store.open(directory, CONFIG)
    for topic in ("kept", "gone"):
        store.topic_configs.put(TopicConfig(topic, queues, queues))
        for queue_id in range(queues):
            append(store, make_record(topic=topic, queue_id=queue_id))
    return store


def run_in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_deletion_does_not_wait_for_a_running_checkpoint(tmp_path: Path) -> None:
    disk = HangingQueues()
    with open_filled_store(tmp_path, 3) as store, replaced(disk):
        checkpoint = run_in_thread(store._save_checkpoint)
        assert disk.reached.wait(30)
        store.delete_topic("gone")
        assert store.topics() == ["kept"]
        append(store, make_record(b"anew", topic="gone", queue_id=1))
        assert bodies(store, "gone", 1) == [b"anew"]
        assert checkpoint.is_alive()
        disk.going.set()
        checkpoint.join()
        assert store.wait_for_removals(30)
        shutil.copytree(tmp_path, tmp_path.with_name("killed"))
    for directory in (tmp_path, tmp_path.with_name("killed")):
        with Store.open(directory, CONFIG) as store:
            assert store.topics() == ["gone", "kept"]
            assert store.queues("gone") == [1]
            assert bodies(store, "gone", 1) == [b"anew"]
            assert store.queues("kept") == [0, 1, 2]


def test_deletion_syncs_do_not_grow_with_queues(tmp_path: Path) -> None:
    counted = []
    for queues in (1, 40):
        disk = HangingQueues()
        disk.going.set()
        with open_filled_store(tmp_path / str(queues), queues) as store:
            write_entries(store)
            with replaced(disk):
                store.delete_topic("gone")
                counted.append(disk.syncs)
    assert counted[0] == counted[1]


def test_delete_topic_soon_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    # A deletion used to sync four journals on the broker's event loop.
    disk = HangingQueues()
    disk.going.set()
    with open_filled_store(tmp_path, 3) as store:
        write_entries(store)
        with replaced(disk):
            store.delete_topic_soon("gone")
            assert disk.syncs == 0
            thread = run_in_thread(store.sync_state)
            thread.join()
            append(store, make_record(b"anew", topic="gone"))
            assert disk.syncs == 0, "it is on disk already"


@contextlib.contextmanager
def lose_power_at_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: float) -> Iterator[Store]:
    """Yield a store whose machine loses power after the block; "lost" has the rest."""
    (tmp_path / "s").mkdir()
    disk = Disk(tmp_path / "s")
    with replaced(disk):
        store = open_filled_store(tmp_path / "s", 2)
        yield store
        disk.after_power_loss(tmp_path / "lost", random.Random(7), luck)
        store.close()
    disk.close()
    for module in ("raymq.storage.store_parts.boot_id", "raymq.storage.checkpointer.boot_id"):
        monkeypatch.setattr(module, lambda: "another")


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_messages_of_a_recreated_topic_survive_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: float
) -> None:
    # The deletion is not synced by itself: the first message of the new topic syncs it.
    with lose_power_at_end(tmp_path, monkeypatch, luck) as store:
        append(store, *(make_record(b"old", topic="gone") for _ in range(5)))
        store._save_checkpoint()
        store.delete_topic_soon("gone")
        append(store, make_record(b"anew", topic="gone"), make_record(b"last", topic="gone"))
        store._log.flush()
    with Store.open(tmp_path / "lost", CONFIG) as store:
        assert bodies(store, "gone") == [b"anew", b"last"]
        assert bodies(store, "kept", 1) == [b"body"]


def test_failed_sync_of_a_deletion_fails_the_store(tmp_path: Path) -> None:
    store = open_filled_store(tmp_path, 1)
    store.delete_topic_soon("gone")
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        store.sync_state()
    with pytest.raises(StoreFailed):
        append(store, make_record())
    store.close()


def test_topic_deleted_after_a_checkpoint_stays_deleted(tmp_path: Path) -> None:
    # The state that the next start reads has the topic's queues, but not their deletion.
    with open_filled_store(tmp_path / "s", 2) as store:
        store._save_checkpoint()
        store.delete_topic("gone")
        assert store.wait_for_removals(30)
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "raymq" / "deleted_queues", ignore_errors=True)
    for _ in range(2):
        with Store.open(tmp_path / "killed", CONFIG) as store:
            assert store.topics() == ["kept"]
            assert store.recovery.walked_from == 0
    with Store.open(tmp_path / "killed", CONFIG) as store:
        append(store, make_record(b"anew", topic="gone"))
        assert bodies(store, "gone") == [b"anew"]
        assert store.min_offset("gone", 0) == 0


@pytest.mark.parametrize("starts", [0, 2])
@pytest.mark.parametrize("damaged", ["state.json", "journal", "snapshot"])
def test_deletion_survives_damage_to_one_of_its_files(tmp_path: Path, damaged: str, starts: int) -> None:
    # A damaged state used to bring deleted topics back with all their messages.
    with open_filled_store(tmp_path, 2) as store:
        store.delete_topic("gone")
        append(store, make_record(b"between"))
    for _ in range(starts):
        Store.open(tmp_path, CONFIG).close()
    newest = max(tmp_path.glob(f"raymq/state/{damaged}-*"), default=tmp_path / "raymq" / damaged)
    newest.write_bytes(b"\xff" * 100)
    for _ in range(2):
        with Store.open(tmp_path, CONFIG) as store:
            assert store.topics() == ["kept", "orders"]
            assert store.incarnation("gone") > 0
    with Store.open(tmp_path, CONFIG) as store:
        append(store, make_record(b"anew", topic="gone"))
    (tmp_path / "raymq" / "state.json").unlink()
    with Store.open(tmp_path, CONFIG) as store:
        assert bodies(store, "gone") == [b"anew"]


def test_deletion_behind_the_lost_log_end_hides_no_messages(tmp_path: Path) -> None:
    # The log ends before the deletion: what is stored there next belongs to a new topic.
    with open_filled_store(tmp_path, 1) as store:
        append(store, *(make_record(b"x" * 900, topic="gone") for _ in range(50)))
        lost = store.max_physical_offset
        append(store, *(make_record(b"x" * 900, topic="gone") for _ in range(50)))
        store.delete_topic("gone")
    file = tmp_path / "commitlog" / ("0" * 20)
    content = file.read_bytes()
    file.write_bytes(content[:lost].ljust(len(content), b"\0"))
    (tmp_path / "abort").write_text("1")
    with Store.open(tmp_path, CONFIG) as store:
        assert store.max_physical_offset == lost
        append(store, make_record(b"anew", topic="gone"))
    for name in ("state.json", "state/journal", "state/snapshot"):
        newest = max(tmp_path.glob(f"raymq/{name}-*"), default=tmp_path / "raymq" / name)
        newest.write_bytes(b"")
        with Store.open(tmp_path, CONFIG) as store:
            assert bodies(store, "gone") == [b"anew"]


@pytest.mark.parametrize("luck", [0.0, 0.3, 0.7, 1.0])
def test_deletion_survives_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: float) -> None:
    with lose_power_at_end(tmp_path, monkeypatch, luck) as store:
        store._save_checkpoint()
        store.flush()
        store.delete_topic("gone")
    with Store.open(tmp_path / "lost", CONFIG) as store:
        assert store.topics() == ["kept"]
        assert store.topic_configs.get("gone") is None


class HangingRemovals(FileCalls):
    """Block removals of log files until `going`."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.going = threading.Event()

    def unlink(self, path: Path) -> None:
        if "commitlog" in path.parts:
            self.reached.set()
            assert self.going.wait(30)
        super().unlink(path)


def test_late_removal_keeps_files_of_a_recreated_topic(tmp_path: Path) -> None:
    now_ms = [1_700_000_000_000]
    disk = HangingRemovals()
    with (
        replaced(disk),
        Store.open(tmp_path, replace(SMALL, flush_interval_ms=3_600_000), now_ms=lambda: now_ms[0]) as s,
    ):
        for number in range(60):
            append(s, make_record(b"%d" % number, topic="gone"))
        now_ms[0] += 100 * 3_600_000
        for number in range(30):
            append(s, make_record(b"%d" % number, topic="kept"))
        s.flush()
        write_entries(s)
        assert s.delete_expired(asked=True).queue_files > 0
        assert disk.reached.wait(30)
        s.delete_topic("gone")
        append(s, make_record(b"anew", topic="gone"))
        write_entries(s)
        disk.going.set()
        assert s.wait_for_removals(30)
        assert [path.name for path in (tmp_path / "consumequeue" / "gone" / "0").iterdir()] == ["0" * 20]
        assert not list((tmp_path / "raymq" / "deleted_queues").iterdir())


@pytest.mark.parametrize("kind", ["make_folder", "rename"])
def test_failed_deletion_keeps_the_topic(tmp_path: Path, kind: str) -> None:
    store = Store.open(tmp_path / "s", CONFIG)
    store.topic_configs.put(TopicConfig("t", 1, 1))
    append(store, make_record(b"0", topic="t"))
    write_entries(store)
    append(store, make_record(b"1", topic="t"))
    with replaced(FaultyCalls(kind, 1, errno.ENOSPC)), pytest.raises(StoreFull):
        store.delete_topic("t")
    assert append(store, make_record(b"2", topic="t")).queue_offsets.tolist() == [2]
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    store.close()
    for directory in (tmp_path / "s", tmp_path / "killed"):
        with Store.open(directory, CONFIG) as again:
            assert bodies(again, "t") == [b"0", b"1", b"2"]
            assert again.incarnation("t") == 0
            again.delete_topic("t")
            assert again.topics() == []
        with Store.open(directory, CONFIG) as again:
            assert again.topics() == []


def test_deletions_do_not_wait_for_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The deletion that made the journal too long used to rewrite it, with two fsyncs.
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 500)
    store, disk = Store.open(tmp_path / "s", CONFIG), OwnCalls()
    state = tmp_path / "s" / "raymq" / "state"
    with replaced(disk):
        for number in range(300):
            append(store, make_record(b"%d" % number, topic=f"gone{number % 7}"))
            with disk.watched():
                store.delete_topic_soon(f"gone{number % 7}")
            store.sync_state()
            wait_for_compaction(store)
            assert sum(each.stat().st_size for each in state.iterdir()) < 5_000
        append(store, make_record(b"anew", topic="gone1"))
    assert disk.waits == 0
    assert len(list(state.glob("snapshot-*"))) == 2
    known = {topic: store.incarnation(topic) for topic in (f"gone{n}" for n in range(7))}
    assert store.wait_for_removals(30)
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    (tmp_path / "killed" / "raymq" / "state.json").unlink()
    store.close()
    for directory in (tmp_path / "s", tmp_path / "killed", tmp_path / "killed"):
        with Store.open(directory, CONFIG) as again:
            assert {topic: again.incarnation(topic) for topic in known} == known
            assert bodies(again, "gone1") == [b"anew"]


def test_folders_left_by_a_killed_process_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "raymq" / "deleted_queues"
    (left / "7" / "0").mkdir(parents=True)
    (left / "7" / "0" / ("0" * 20)).write_bytes(b"x")
    with open_filled_store(tmp_path, 1) as store:
        poll_until(lambda: not list(left.iterdir()))
        store.delete_topic("gone")
        assert store.wait_for_removals(10)
        assert not list(left.iterdir())


class NoRoom(FileCalls):
    """Allow so many more writes, and refuse folders and renames."""

    def __init__(self, writes: int) -> None:
        self.writes = writes

    def write(self, fd: int, content: bytes | memoryview) -> int:
        if self.writes == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes -= 1
        return super().write(fd, content)

    def make_folder(self, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("is_killed", [True, False])
def test_deletion_refused_by_full_disk_is_not_redone_at_startup(tmp_path: Path, is_killed: bool) -> None:
    # The deletion's frame was in the journal, and the frame that revokes it found no space.
    with open_filled_store(tmp_path / "s", 1) as store:
        write_entries(store)
        store.flush()
        with replaced(NoRoom(1)), pytest.raises(StoreFull):
            store.delete_topic("gone")
        there = bodies(store, "gone")
        append(store, make_record(b"later", topic="gone"))
        if is_killed:
            shutil.copytree(tmp_path / "s", tmp_path / "killed")
    for _ in range(2):
        with Store.open(tmp_path / ("killed" if is_killed else "s"), CONFIG) as store:
            assert bodies(store, "gone") == [*there, b"later"]
            assert store.incarnation("gone") == 0
    with Store.open(tmp_path / ("killed" if is_killed else "s"), CONFIG) as store:
        store.delete_topic("gone")
        assert store.topics() == ["kept"]
