"""Test retention: the decision as a table, and a store's expiry of files."""

from __future__ import annotations

import resource
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import MessageExpired, OffsetOutOfRange, StoreError, StoreFull
from raymq.storage.journal import state_journal
from raymq.storage.log import retention as retention_of
from raymq.storage.log.retention import DiskUsage, FileRemover, Retention, RetentionDecision
from raymq.storage.records.record import OFFSET_STORE_TIMESTAMP
from raymq.storage.store import Store
from raymq.storage.tables import deleted_topics
from tests.state_journals import wait_for_compaction
from tests.store_records import SMALL, append, bodies, make_record

HOUR = 3_600_000
NOW = 1_000 * HOUR
FILE = 1 << 30
#: A disk of 100 files.
PART = {
    share: DiskUsage(int(share * 100 * FILE), int((1 - share) * 100 * FILE)) for share in (0.5, 0.75, 0.849, 0.85, 0.95)
}
OLD, YOUNG = NOW - 73 * HOUR, NOW - 71 * HOUR


@pytest.mark.parametrize(
    ("hour", "at_hour", "share", "newest_ms", "asked", "expected"),
    [
        (4, "04", 0.5, [OLD, OLD, YOUNG], False, RetentionDecision(2, "hour")),
        (5, "04", 0.5, [OLD, OLD, YOUNG], False, RetentionDecision()),
        (5, "*", 0.5, [OLD, OLD, YOUNG], False, RetentionDecision(2, "hour")),
        (5, "04", 0.5, [OLD, OLD, YOUNG], True, RetentionDecision(2, "asked")),
        (5, "04", 0.75, [OLD, OLD, YOUNG], False, RetentionDecision(2, "early")),
        (5, "04", 0.849, [YOUNG, YOUNG], False, RetentionDecision()),
        # The first file that has not expired ends it, also if a later one looks older: no holes.
        (4, "04", 0.5, [YOUNG, OLD], False, RetentionDecision()),
        (4, "04", 0.5, [OLD, YOUNG, OLD], False, RetentionDecision(1, "hour")),
        (4, "04", 0.5, [], False, RetentionDecision()),
        (4, "04", 0.95, [], True, RetentionDecision()),
        # Exactly as old as allowed.
        (4, "04", 0.5, [NOW - 72 * HOUR], False, RetentionDecision()),
        (4, "04", 0.5, [NOW - 72 * HOUR - 1], False, RetentionDecision(1, "hour")),
        # Forced: as many as bring the disk below the mark, whatever their age; one at least.
        (5, "04", 0.85, [YOUNG, YOUNG], False, RetentionDecision(1, "forced")),
        (5, "04", 0.95, [YOUNG] * 30, False, RetentionDecision(10, "forced")),
        (5, "04", 0.95, [YOUNG] * 3, False, RetentionDecision(3, "forced")),
        (5, "04", 0.85, [OLD, OLD, YOUNG], False, RetentionDecision(2, "early")),
        # At most ten in a run.
        (4, "04", 0.5, [OLD] * 30, False, RetentionDecision(10, "hour")),
    ],
)
def test_retention_decision_table(
    hour: int, at_hour: str, share: float, newest_ms: list[int], asked: bool, expected: RetentionDecision
) -> None:
    rules = Retention(72, at_hour)
    decided = rules.decide(newest_ms, FILE, NOW, PART[share], asked=asked, hour_of=lambda now_ms: hour)
    assert decided == expected


@pytest.fixture(autouse=True)
def roomy_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the machine's own disk usage decide nothing."""
    if request.function is not test_disk_usage_equals_df:
        monkeypatch.setattr(retention_of.shutil, "disk_usage", lambda _: _empty())


def test_disk_usage_equals_df(tmp_path: Path) -> None:
    disk = DiskUsage.of(tmp_path)
    assert 0 < disk.ratio < 1
    assert DiskUsage(3, 1).ratio == 0.75
    assert DiskUsage(0, 0).ratio == 0


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


def open_filled_store(directory: Path, clock: Clock, count: int = 300, **settings: object) -> Store:
    """Open a store of small files: two busy queues, an old one, many small ones."""
    config = replace(SMALL, delete_at_hour="*", **settings)  # type: ignore[arg-type]
    store = Store.open(directory, config, now_ms=clock)
    append(store, *[make_record(b"idle", topic="idle", keys="idle") for _ in range(20)])
    for i in range(count):
        append(store, make_record(b"%03d" % i, queue_id=i % 2, keys=f"k{i}"))
        clock.now_ms += 1000
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_retention(store: Store) -> None:
    """Run the owner's expiry until nothing is left to do, and the removals."""
    for _ in range(50):
        deleted = store.delete_expired()
        assert store.wait_for_removals(30)
        if not (deleted.log_files or deleted.queue_files or deleted.index_files):
            return
    raise AssertionError("it never ends")


def test_expired_files_are_removed_and_others_kept(tmp_path: Path) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock) as store:
        assert store.delete_expired() == retention_of.RetentionResult()
        store._save_checkpoint()
        before = names(tmp_path / "commitlog")
        all_bodies = [record.body for record in store.walk(0)]
        # Expired: what was stored in the first two of the five minutes.
        clock.now_ms = NOW + 72 * HOUR + 120_000
        first = store.delete_expired()
        assert (first.log_files, first.reason) == (retention_of.MAX_FILES_PER_RUN, "hour") or first.log_files < 10
        run_retention(store)
        after = names(tmp_path / "commitlog")
        assert after == before[-len(after) :]
        assert 1 < len(after) < len(before)
        assert store.min_physical_offset == int(after[0])
        kept = [record.body for record in store.walk(0)]
        assert kept == all_bodies[-len(kept) :]
        assert store.read_at(store.min_physical_offset).store_timestamp_ms < clock.now_ms - 72 * HOUR
        assert next(r for r in store.walk(int(after[1]))).store_timestamp_ms >= clock.now_ms - 72 * HOUR
        with pytest.raises(MessageExpired):
            store.read_at(0)

        for queue_id in (0, 1):
            minimum = store.min_offset("orders", queue_id)
            assert 0 < minimum < store.max_offset("orders", queue_id) == 150
            with pytest.raises(OffsetOutOfRange) as caught:
                store.read("orders", queue_id, minimum - 1)
            assert (caught.value.min_offset, caught.value.max_offset) == (minimum, 150)
            assert store.offset_at_time("orders", queue_id, 0) == minimum
            files = names(tmp_path / "consumequeue" / "orders" / str(queue_id))
            assert int(files[0]) // 20 <= minimum < int(files[0]) // 20 + 16
        # A queue whose messages are all gone keeps its last file, and with it its offsets.
        assert store.min_offset("idle", 0) == store.max_offset("idle", 0) == 20
        assert names(tmp_path / "consumequeue" / "idle" / "0") == [f"{320:020d}"]
        assert store.query("orders", "k0", 0, 1 << 60, 9) == []
        assert [r.body for r in store.query("orders", "k299", 0, 1 << 60, 9)] == [b"299"]
        assert len(names(tmp_path / "index")) < 10
        minima = {queue_id: store.min_offset("orders", queue_id) for queue_id in (0, 1)}
    with Store.open(tmp_path, SMALL, now_ms=clock) as store:
        assert store.recovery.clean
        assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
        assert {queue_id: store.min_offset("orders", queue_id) for queue_id in (0, 1)} == minima
        assert store.max_offset("idle", 0) == 20
    # Lost queues are rebuilt; a queue without messages does not begin at 0 again.
    shutil.rmtree(tmp_path / "consumequeue")
    with Store.open(tmp_path, SMALL, now_ms=clock) as store:
        assert {queue_id: store.min_offset("orders", queue_id) for queue_id in (0, 1)} == minima
        assert append(store, make_record(topic="idle")).queue_offsets.tolist() == [20]
        assert append(store, make_record()).queue_offsets.tolist() == [150]
        assert store.min_offset("idle", 0) == 20


def test_unwritten_queue_entries_expire_with_their_messages(tmp_path: Path) -> None:
    clock = Clock()
    with Store.open(tmp_path, replace(SMALL, delete_at_hour="*"), now_ms=clock) as store:
        writer = store._dispatcher.entry_writer
        assert writer is not None
        writer.stop()  # As if the disk had been slow since then: the entries are in memory alone.
        for i in range(300):
            append(store, make_record(b"%03d" % i))
            clock.now_ms += 1000
        store.flush()
        clock.now_ms = NOW + 72 * HOUR + 120_000
        run_retention(store)
        minimum = store.min_offset("orders", 0)
        assert 32 < minimum < 300
    # RocketMQ looks for the minimum in the first file only.
    first = names(tmp_path / "consumequeue" / "orders" / "0")[0]
    assert int(first) // 20 <= minimum < int(first) // 20 + 16


@pytest.mark.parametrize("damage", ["filler", "a place below zero", "a size below zero"])
def test_damaged_queue_entry_removes_no_live_file(tmp_path: Path, damage: str) -> None:
    clock = Clock()
    with Store.open(tmp_path, SMALL, now_ms=clock) as store:
        for i in range(100):
            append(store, make_record(b"%03d" % i))
    file = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    content = bytearray(file.read_bytes())
    at = 15 * 20  # the last one of its file
    if damage == "filler":
        content[at : at + 20] = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    else:
        content[at if "place" in damage else at + 8] ^= 0x80
    file.write_bytes(content)
    with Store.open(tmp_path, SMALL, now_ms=clock) as store:
        run_retention(store)
        assert file.exists()
        assert store.min_offset("orders", 0) == 0
        with store.read("orders", 0, 0, 15) as lease:
            assert [record.body for record in lease.messages()] == [b"%03d" % i for i in range(15)]


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_flipped_bit_in_a_store_time_expires_no_file(tmp_path: Path, nth: int) -> None:
    # The age of a file used to be taken from the first record of the next file alone.
    clock = Clock()
    open_filled_store(tmp_path, clock).close()
    path = tmp_path / "commitlog" / names(tmp_path / "commitlog")[nth]
    content = bytearray(path.read_bytes())
    content[OFFSET_STORE_TIMESTAMP + 4] ^= 0x80  # 24 days earlier
    path.write_bytes(content)
    with open_filled_store(tmp_path, clock, 0) as store:
        append(store, make_record(b"later"))
        store.flush()
        assert store.delete_expired(asked=True) == retention_of.RetentionResult()
        clock.now_ms += 73 * HOUR
        run_retention(store)
        assert store.min_physical_offset > 0


def test_newest_and_unflushed_files_are_never_removed(tmp_path: Path) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock, flush_interval_ms=600_000) as store:
        clock.now_ms += 1000 * HOUR
        flushed = store.flushed_offset
        run_retention(store)
        assert store.min_physical_offset <= flushed
        store.flush()
        run_retention(store)
        newest = store.max_physical_offset - store.max_physical_offset % 4096
        assert names(tmp_path / "commitlog")[0] == f"{newest:020d}"
        append(store, make_record(b"again"))
        assert bodies(store)[-1] == b"again"


def test_full_disk_forces_deletion_and_refuses_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock, disk_refuse_ratio=0.9) as store:
        store.flush()
        before = len(names(tmp_path / "commitlog"))
        total = 1000 * 4096

        def usage(_path: object) -> object:
            used = int(total * 0.95) - 4096 * (before - len(names(tmp_path / "commitlog")))
            return type("Usage", (), {"total": total, "used": used, "free": total - used})()

        monkeypatch.setattr(retention_of.shutil, "disk_usage", usage)
        store._writer._disk_checked_at = float("-inf")
        with pytest.raises(StoreFull):
            append(store, make_record())
        deleted = store.delete_expired()
        assert (deleted.log_files, deleted.reason) == (min(10, before - 1), "forced")
        assert store.wait_for_removals(30)
        monkeypatch.setattr(retention_of.shutil, "disk_usage", lambda path: usage(path) and _empty())
        store._writer._disk_checked_at = float("-inf")
        append(store, make_record())


def _empty() -> object:
    return type("Usage", (), {"total": 100, "used": 10, "free": 90})()


def test_requested_deletion_does_not_wait_for_the_hour(tmp_path: Path) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock) as store:
        store.flush()
        clock.now_ms += 73 * HOUR
        another_hour = (time.localtime(clock.now_ms / 1000).tm_hour + 1) % 24
        store.retention = Retention(72, f"{another_hour:02d}")
        assert store.delete_expired().log_files == 0
        assert store.delete_expired(asked=True).reason == "asked"


def test_lease_is_valid_after_its_file_is_removed(tmp_path: Path) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock) as store:
        store.flush()
        lease = store.read("idle", 0, 0, 20)
        before = bytes(lease.records)
        clock.now_ms += 100 * HOUR
        run_retention(store)
        assert store.min_offset("idle", 0) == 20
        assert bytes(lease.records) == before
        assert [record.body for record in lease.messages()] == [b"idle"] * 20


def test_files_left_by_a_crash_are_removed_after_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The process was killed after the decision and before the removal.
    clock = Clock()
    with open_filled_store(tmp_path, clock) as store:
        store.flush()
        clock.now_ms += 100 * HOUR
        with monkeypatch.context() as patched:
            patched.setattr(FileRemover, "add", lambda self, removals: None)
            assert store.delete_expired().log_files > 5
        minimum = store.min_physical_offset
    with Store.open(tmp_path, SMALL, now_ms=clock) as store:
        assert store.min_physical_offset == 0
        assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
        store.retention = Retention(72, "*")
        run_retention(store)
        assert store.min_physical_offset >= minimum


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Prevent this process from opening files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_run_without_descriptors_leaves_no_gap_in_the_log(tmp_path: Path) -> None:
    # The run's log files were never removed, those of later runs were, and the store did not open any more.
    clock = Clock()
    open_filled_store(tmp_path, clock, 900).close()
    with open_filled_store(tmp_path, clock, 0) as store:  # former queue entries are in files
        clock.now_ms += 73 * HOUR
        append(store, make_record(b"later"))
        store.flush()
        assert store.delete_expired().log_files == retention_of.MAX_FILES_PER_RUN
        assert store._log.expirable(retention_of.MAX_FILES_PER_RUN), "they are mapped"
        queues = len(names(tmp_path / "consumequeue" / "orders" / "0"))
        with no_descriptors():
            assert store.delete_expired().log_files == retention_of.MAX_FILES_PER_RUN
        append(store, *(make_record(b"x" * 500) for _ in range(20)))
        store.flush()
        clock.now_ms += 73 * HOUR
        run_retention(store)
        left = [int(name) for name in names(tmp_path / "commitlog")]
        assert left[0] == store.min_physical_offset
        assert left == list(range(left[0], left[-1] + 1, SMALL.commitlog_file_bytes))
        assert len(names(tmp_path / "consumequeue" / "orders" / "0")) < queues, "they are looked at again"
    with Store.open(tmp_path, SMALL) as store:
        assert store.recovery.clean


def test_appends_and_flushes_continue_during_retention(tmp_path: Path) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock, retention_hours=0.001, flush_interval_ms=1) as store:
        stop = threading.Event()
        problems: list[BaseException] = []

        def flush() -> None:
            while not stop.is_set():
                try:
                    store.flush()
                except BaseException as error:  # noqa: BLE001 - the test reports any error
                    problems.append(error)

        thread = threading.Thread(target=flush)
        thread.start()
        try:
            for i in range(400):
                clock.now_ms += 1000
                append(store, *[make_record(b"%04d" % i, keys="k")] * 3)
                store.delete_expired()
                assert store.read("orders", 0, store.max_offset("orders", 0) - 1).messages()[0].body == b"%04d" % i
        finally:
            stop.set()
            thread.join()
        assert problems == []
        store.flush()
        run_retention(store)
        assert len(names(tmp_path / "commitlog")) < 10
        assert store.max_offset("orders", 0) == 150 + 1200


def test_failed_removal_is_retried_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.touch()
    second.touch()
    remover = FileRemover(threading.Lock())

    def fail(_path: Path) -> None:
        raise StoreError("no")

    with monkeypatch.context() as patched:
        patched.setattr("raymq.storage.files.fileutil.remove", fail)
        remover.add([(first, None), (second, None)])
        assert remover.wait(30)
        assert names(tmp_path) == ["1", "2"]
    third = tmp_path / "3"
    third.touch()
    remover.add([(third, None)])
    assert remover.wait(30)
    assert names(tmp_path) == []
    remover.stop()
    remover.add([(tmp_path / "4", None)])


class Unclosed:
    """Fake an open file whose first close fails, as for want of memory."""

    def __init__(self) -> None:
        self.tries = 0

    def close(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise MemoryError


def test_removal_failed_by_a_memory_error_is_retried(tmp_path: Path) -> None:
    # The remover's thread used to end: nothing was removed any more, and the store's stop hung.
    paths = [tmp_path / str(number) for number in range(2)]
    for path in paths:
        path.touch()
    remover, unclosed = FileRemover(threading.Lock()), Unclosed()
    remover.add([(paths[0], unclosed)])
    assert remover.wait(30)
    remover.add([(paths[1], None)])
    assert remover.wait(30)
    assert (names(tmp_path), unclosed.tries) == ([], 2)
    remover.stop()


def test_many_deleted_topics_are_kept_until_their_messages_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fault 13.30.
    monkeypatch.setattr(deleted_topics, "_KEPT_DELETIONS", 0)
    clock = Clock()
    with open_filled_store(tmp_path, clock) as store:
        for number in range(50):
            store.delete_topic(f"early-{number}")
        assert len(store._parts.deleted_topics) == 50
        while min(store._parts.deleted_topics.values()) > store._log.min_offset:
            append(store, *(make_record(b"x" * 500) for _ in range(20)))
            store.flush()
            clock.now_ms += 73 * HOUR
            store.delete_expired(asked=True)
        store.delete_topic("late")
        assert list(store._parts.deleted_topics) == ["late"]


def test_too_many_deletions_are_forgotten_when_their_records_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tables beside the log used to keep all deletions of a broker's life until the next start.
    monkeypatch.setattr(deleted_topics, "_KEPT_DELETIONS", 0)
    clock = Clock()
    store = open_filled_store(tmp_path, clock)
    known = store._parts.deleted_topics
    for number in range(50):
        store.delete_topic(f"early-{number}")
    checkpointed = store._checkpointer.saved_to
    while max(known.values()) > store._log.min_offset:
        append(store, *(make_record(b"x" * 500) for _ in range(20)))
        store.flush()
        clock.now_ms += 73 * HOUR
        store.delete_expired(asked=True)
    assert len(known) == 50
    store._checkpointer.saved_to = checkpointed
    store.delete_topic("late")
    assert len(known) == 51, "a checkpoint from before still has their queues"
    store._save_checkpoint()
    store.delete_topic("later")
    store.delete_topic("last")
    assert list(known) == ["late", "later", "last"]
    store.consumer_offsets.commit("g", "early-7", 0, 0)
    store._parts.journal.compact()
    assert store.wait_for_removals(60)
    store._flusher.stop()
    store._abandon()
    with Store.open(tmp_path, SMALL) as store:
        assert store.consumer_offsets.get("g", "early-7", 0) == 0
        assert list(store.tables.deleted_topics.places) == ["late", "later", "last"]
        assert store.incarnation("late") > 0
        assert store.incarnation("early-7") == 0


def test_number_of_kept_deletions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The oldest expired deletions are dropped by the next deletion; the snapshots have only those that are left.
    monkeypatch.setattr(deleted_topics, "_KEPT_DELETIONS", 10)
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 2_000)
    clock = Clock()
    store = open_filled_store(tmp_path, clock)
    sizes: list[int] = []
    for turn in range(40):
        for number in range(50):
            store.delete_topic(f"t-{turn}-{number}")
        store._save_checkpoint()
        while max(store._parts.deleted_topics.values()) > store._log.min_offset:
            append(store, *(make_record(b"x" * 500) for _ in range(20)))
            store.flush()
            clock.now_ms += 73 * HOUR
            store.delete_expired(asked=True)
        store._save_checkpoint()
        sizes.append(len(store._parts.deleted_topics))
    assert max(sizes) <= 50 + 10 + 1, sizes
    wait_for_compaction(store)
    assert sum(each.stat().st_size for each in (tmp_path / "raymq" / "state").iterdir()) < 60_000
    store.close()


def test_deletion_outlives_its_records_for_replicas_with_more_log(tmp_path: Path) -> None:
    clock = Clock()
    with open_filled_store(tmp_path, clock) as store:
        store.delete_topic("early")
        place = store.incarnation("early")
        while place > store._log.min_offset:
            append(store, *(make_record(b"x" * 500) for _ in range(20)))
            store.flush()
            clock.now_ms += 73 * HOUR
            store.delete_expired(asked=True)
        store.delete_topic("late")
        assert store.incarnation("early") == place
    with Store.open(tmp_path, SMALL) as store:
        assert store.incarnation("early") == place
