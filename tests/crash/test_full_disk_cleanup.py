"""Test that a start on a full disk without a disk reserve frees space before the store is opened."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import emergency_cleaner
from raymq.storage.errors import StoreCorrupt, StoreFull, StoreLocked
from raymq.storage.failpoints import VARIABLE
from raymq.storage.files.disk_reserve import DISK_RESERVE_BYTES
from raymq.storage.files.file_calls import replaced
from raymq.storage.files.fileutil import make_folder
from raymq.storage.log.retention import Retention
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths, take_lock
from tests import fork_server
from tests.crash.power_loss import Disk as PowerDisk
from tests.full_disk import FullDisk, fill
from tests.store_records import SMALL, append, bodies, make_record, write_entries

pytestmark = pytest.mark.crash

HOUR_MS = 3_600_000
BEGAN_MS = 1_000 * HOUR_MS
COUNT = 400
CONFIG = replace(SMALL, flush_interval_ms=HOUR_MS, delete_at_hour="*")
#: At this time the first 250 messages, one stored each second, have expired.
LATER_MS = BEGAN_MS + 72 * HOUR_MS + 250_000


def make_killed_store(directory: Path, *, checkpoint_at: int = COUNT, **settings: object) -> None:
    """Make a killed store with a message stored each second, without a disk reserve."""
    now_ms = BEGAN_MS
    config = replace(CONFIG, **settings)  # type: ignore[arg-type]
    store = Store.open(directory, config, now_ms=lambda: now_ms)
    for number in range(COUNT):
        append(store, make_record(b"%d" % number, queue_id=number % 2, keys=f"k{number}"))
        now_ms += 1000
        if number + 1 == checkpoint_at:
            write_entries(store)
            store._save_checkpoint()
    store.consumer_offsets.commit("g", "orders", 0, 199)
    store._flusher.stop()
    store._abandon()
    StorePaths(directory).disk_reserve.unlink()


def read_numbers(store: Store) -> list[int]:
    """Return the messages; check that they are readable in every way, the newest ones, and without a gap."""
    found = sorted(int(body) for queue_id in (0, 1) for body in bodies(store, queue_id=queue_id))
    assert found == list(range(found[0], COUNT)) == [int(record.body) for record in store.walk(0)]
    for number in (found[0], found[-1]):
        assert [int(r.body) for r in store.query("orders", f"k{number}", 0, 1 << 60, 9)] == [number]
    assert store.max_offset("orders", 0) == store.max_offset("orders", 1) == COUNT // 2
    assert store.consumer_offsets.get("g", "orders", 0) == 199
    return found


@contextlib.contextmanager
def open_later(directory: Path, **settings: object) -> Iterator[Store]:
    """Open the store later. Without space for a proper close the next open recovers it."""
    config = replace(CONFIG, **settings)  # type: ignore[arg-type]
    rules = Retention(config.retention_hours, config.delete_at_hour)
    store = Store.open(directory, config, now_ms=lambda: LATER_MS, retention=rules)
    try:
        yield store
    finally:
        with contextlib.suppress(StoreFull):
            store.close()


@pytest.mark.parametrize("kib", [0, 4, 8, 16, 32])
def test_expired_files_are_removed_before_store_opens(
    tmp_path: Path, kib: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard against fault 13.25: without a reserve the open failed, so retention, which frees space, never ran."""
    make_killed_store(tmp_path)
    with replaced(FullDisk(kib << 10)), open_later(tmp_path) as store:
        found = read_numbers(store)
        assert found[0] <= 250
        minimum = store.min_physical_offset
    removed = [record.args[0] for record in caplog.records if record.name == emergency_cleaner.__name__ and record.args]
    assert [Path(str(path)).name for path in removed if "commitlog" in str(path)] == [
        f"{start:020d}" for start in range(0, minimum, CONFIG.commitlog_file_bytes)
    ]
    with open_later(tmp_path) as store:
        assert read_numbers(store)[0] >= found[0]
        append(store, make_record(b"again"))


def test_oldest_files_are_removed_above_forced_ratio(small_disk: Path) -> None:
    sizes = {"commitlog_file_bytes": 1 << 20, "consume_queue_file_entries": 1_000}
    store = Store.open(small_disk / "store", replace(CONFIG, **sizes))
    with contextlib.suppress(StoreFull):
        for number in range(10**6):
            append(store, make_record(b"%d:" % number + bytes(100_000)))
            if number % 100 == 99:
                store._save_checkpoint()
    end = store.max_offset("orders", 0)
    store._flusher.stop()
    store._abandon()
    StorePaths(small_disk / "store").disk_reserve.unlink(missing_ok=True)
    fill(small_disk)
    with Store.open(small_disk / "store", replace(CONFIG, **sizes), retention=Retention(72, "04")) as store:
        assert 0 < store.min_offset("orders", 0) < store.max_offset("orders", 0) == end
        store.delete_expired()
        assert StorePaths(small_disk / "store").disk_reserve.exists(), "it is made as soon as there is room"


def test_store_full_error_names_disk_and_keeps_files(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    with replaced(FullDisk(0)), pytest.raises(StoreFull) as caught, open_later(tmp_path, retention_hours=1000.0):
        pass
    assert str(tmp_path) in str(caught.value)
    assert "bytes are free" in str(caught.value)
    assert "free a few MiB" in str(caught.value)
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before
    with open_later(tmp_path, retention_hours=1000.0) as store:
        assert read_numbers(store)[0] == 0


def test_open_without_retention_rules_keeps_log_files(tmp_path: Path) -> None:
    """A caller without rules may not apply the broker's: settings and later changes by an administrator differ."""
    make_killed_store(tmp_path)
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        Store.open(tmp_path, CONFIG, now_ms=lambda: LATER_MS)
    with open_later(tmp_path) as store:
        assert read_numbers(store)[0] == 0


def test_blocks_after_log_end_are_freed(small_disk: Path) -> None:
    """A killed process leaves blocks that it allocated for later messages."""
    sizes = {"commitlog_file_bytes": 16 << 20}
    make_killed_store(small_disk / "store", **sizes)
    fill(small_disk)
    with open_later(small_disk / "store", **sizes) as store:
        assert read_numbers(store)[0] == 0
        (small_disk / "filler").unlink()
        append(store, make_record(b"again"))
    with open_later(small_disk / "store", **sizes) as store:
        assert store.recovery.corruption == []
        assert bodies(store)[-1] == b"again"


class Died(Exception):
    """The process was killed."""


class KilledOnFullDisk(FullDisk):
    """A full disk, and a process that is killed before its `nth` call that truncates, grows or removes a file."""

    def __init__(self, nth: int) -> None:
        super().__init__(0)
        self._left = nth

    def _change(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Died

    def truncate(self, fd: int, size: int) -> None:
        self._change()
        super().truncate(fd, size)

    def unlink(self, path: Path) -> None:
        self._change()
        super().unlink(path)


@pytest.mark.parametrize("nth", range(1, 6))
def test_kill_while_freeing_blocks_loses_no_message(tmp_path: Path, nth: int) -> None:
    """An allocated empty file follows the last one, which must not end up shorter than its size."""
    sizes = {"commitlog_file_bytes": 1 << 20, "retention_hours": 1000.0}
    make_killed_store(tmp_path, **sizes)
    with (tmp_path / "commitlog" / f"{1 << 20:020d}").open("wb") as prepared:
        prepared.truncate(1 << 20)
        os.posix_fallocate(prepared.fileno(), 0, 1 << 20)
    with replaced(KilledOnFullDisk(nth)), contextlib.suppress(Died), open_later(tmp_path, **sizes):
        pass
    with open_later(tmp_path, **sizes) as store:
        assert read_numbers(store)[0] == 0
        assert store.recovery.corruption == []


def test_unused_files_are_removed_first(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    paths = StorePaths(tmp_path)
    rubbish = [tmp_path / "checkpoint.tmp", paths.damaged / f"{7:020d}"]
    rubbish.append(paths.deleted_queues / "3" / "0" / f"{0:020d}")
    kept = paths.damaged / "topics.json"  # set aside by a repair
    for path in (*rubbish, kept):
        make_folder(path.parent)
        path.write_bytes(bytes(20_000))
    with replaced(FullDisk(0)), open_later(tmp_path, retention_hours=1000.0) as store:
        assert read_numbers(store)[0] == 0
    assert not any(path.exists() for path in rubbish)
    assert kept.exists()


def test_queue_and_index_files_before_log_start_are_removed(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    # The process died between the log's files and the derived files.
    for path in sorted((tmp_path / "commitlog").iterdir())[:6]:
        path.unlink()
    before = len(list((tmp_path / "index").iterdir()))
    with replaced(FullDisk(0)), open_later(tmp_path, retention_hours=1000.0) as store:
        assert read_numbers(store)[0] > 0
        assert len(list((tmp_path / "index").iterdir())) < before
        assert min((tmp_path / "consumequeue" / "orders" / "0").iterdir()).name != f"{0:020d}"


@pytest.mark.parametrize("checkpoint_at", [1, 60, 200])
def test_files_after_last_checkpoint_are_kept(tmp_path: Path, checkpoint_at: int) -> None:
    """A power loss would remove their queue entries, and their offsets would be reused."""
    make_killed_store(tmp_path, checkpoint_at=checkpoint_at)
    with replaced(FullDisk(0)), contextlib.suppress(StoreFull), open_later(tmp_path) as store:
        assert read_numbers(store)[0] < checkpoint_at
    with open_later(tmp_path) as store:
        assert read_numbers(store)[0] < checkpoint_at


def test_offsets_continue_after_power_loss_and_cleanup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_killed_store(tmp_path)
    monkeypatch.setattr("raymq.storage.store_parts.boot_id", lambda: "another")
    monkeypatch.setattr(emergency_cleaner, "boot_id", lambda: "another")
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: "another")
    with replaced(FullDisk(0)), open_later(tmp_path) as store:
        assert 0 < read_numbers(store)[0] <= 250


class PowerLost(Exception):
    """The machine lost power."""


class FullMachine(FullDisk, PowerDisk):
    """A full disk that records what was synced."""

    def __init__(self, root: Path, dies_at: int) -> None:
        """Lose power at the `dies_at`-th sync."""
        PowerDisk.__init__(self, root)
        FullDisk.__init__(self, 0)
        self.remember_all()
        self.before_sync = self._die
        self._left = dies_at

    def _die(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise PowerLost


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dies_at", [*range(1, 15), 20, 30, 50, 70])
def test_power_loss_during_cleanup_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int, luck: float
) -> None:
    (tmp_path / "before").mkdir()
    make_killed_store(tmp_path / "before")
    machine = FullMachine(tmp_path / "before", dies_at)
    try:
        with replaced(machine), contextlib.suppress(PowerLost):
            Store.open(tmp_path / "before", CONFIG, now_ms=lambda: LATER_MS, retention=Retention(72, "*"))._abandon()
        machine.after_power_loss(tmp_path / "after", random.Random(dies_at), luck)
    finally:
        machine.close()
    monkeypatch.setattr("raymq.storage.store_parts.boot_id", lambda: "another")
    with open_later(tmp_path / "after") as store:
        assert read_numbers(store)[0] <= 250
        assert store.recovery.corruption == []


def test_directory_without_raymq_checkpoint_keeps_log_files(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    shutil.rmtree(tmp_path / "raymq")
    with replaced(FullDisk(0)), pytest.raises(StoreFull), open_later(tmp_path):
        pass
    with open_later(tmp_path) as store:
        assert int(next(store.walk(0)).body) == 0


def test_locked_directory_is_not_cleaned(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    lock = take_lock(StorePaths(tmp_path))
    try:
        maker = emergency_cleaner.EmergencyCleaner(tmp_path, CONFIG, lambda: LATER_MS)
        with pytest.raises(StoreLocked):
            maker.step()
    finally:
        lock.release()
    assert min((tmp_path / "commitlog").iterdir()).name == f"{0:020d}"


def test_damage_on_full_disk_raises_store_corrupt(tmp_path: Path) -> None:
    make_killed_store(tmp_path)
    (tmp_path / "commitlog" / f"{4096 * 3:020d}").unlink()
    with replaced(FullDisk(0)), pytest.raises(StoreCorrupt), open_later(tmp_path):
        pass


def open_on_full_disk(directory: Path) -> None:
    with replaced(FullDisk(0)), open_later(directory):
        pass


@pytest.mark.parametrize("time", [1, 2, 5])
def test_killed_cleanup_is_continued_by_next_start(tmp_path: Path, time: int) -> None:
    make_killed_store(tmp_path)
    program = (
        "from pathlib import Path; from tests.crash.test_full_disk_cleanup import open_on_full_disk;"
        f"open_on_full_disk(Path({str(tmp_path)!r}))"
    )
    environment = {**os.environ, VARIABLE: f"cleanup.before_remove:{time}"}
    done = fork_server.run(["-c", program], env=environment, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert min((tmp_path / "commitlog").iterdir()).name == f"{(time - 1) * CONFIG.commitlog_file_bytes:020d}"
    with replaced(FullDisk(0)), open_later(tmp_path) as store:
        assert 0 < read_numbers(store)[0] <= 250


def test_disk_reserve_is_refilled_before_next_message(tmp_path: Path) -> None:
    """It was allocated by a retention run, up to ten seconds later."""
    make_killed_store(tmp_path)
    disk = FullDisk(0)
    with replaced(disk), open_later(tmp_path) as store:
        while store.delete_expired().log_files:
            assert store.wait_for_removals(10)
        disk.free_bytes = DISK_RESERVE_BYTES
        store._writer._disk_checked_at = float("-inf")  # as a second later
        with contextlib.suppress(StoreFull):
            append(store, make_record(b"again"))
        assert StorePaths(tmp_path).disk_reserve.stat().st_blocks * 512 >= DISK_RESERVE_BYTES
