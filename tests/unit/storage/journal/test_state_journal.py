"""Test that the state journal keeps its events through kills, losses of power, full disks and damage."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import NAMES, arm
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.journal import state_journal
from raymq.storage.journal.journal_files import SetAsideEvent, journal_path, snapshot_path
from raymq.storage.journal.journal_frames import encode_frame
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls
from tests.full_disk import FullDisk
from tests.store_records import SMALL


class Values(JournaledTable):
    """Values by key; an event is [key, value], or [key] for one that is removed.

    Attributes:
        applied: the events that `apply` was given, and those that `apply_after_loss` was given.
    """

    NUMBER: ClassVar = 200

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.applied: list[list[Any]] = []
        self.after_loss: list[list[Any]] = []

    def apply(self, fields: Fields) -> None:
        key, *rest = fields
        if not isinstance(key, str) or len(rest) > 1:
            raise ValueError("no event")
        self.applied.append([key, *rest])
        if rest:
            self.values[key] = rest[0]
        else:
            self.values.pop(key, None)

    def apply_after_loss(self, fields: Fields) -> None:
        self.after_loss.append([*fields])
        self.apply(fields)

    def snapshot(self) -> Iterator[Fields]:
        yield from self.values.copy().items()


class TwiceValues(Values):
    """A table whose events are written twice."""

    NUMBER: ClassVar = 201
    COPIES: ClassVar = 2


def opened(folder: Path, table: JournaledTable, *, writable: bool = True) -> StateJournal:
    return StateJournal(folder, [table], writable=writable)


def read_values(folder: Path, kind: type[Values] = Values) -> dict[str, Any]:
    table = kind()
    opened(folder, table, writable=False)
    return table.values


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def exit_code_of_child(work: Callable[[], None]) -> int:
    """Return the exit code of a forked child that does `work`; 7 if it comes to its end."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_events_and_their_order_survive_a_kill(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path / "made" / "state", table)
    numbers = [table.record("a", 1), table.record("b", [1, "x"]), table.record("a"), table.record("c", b"\xff")]
    assert numbers == [1, 2, 3, 4]
    assert journal.last == 4
    again = Values()
    other = opened(tmp_path / "made" / "state", again)
    assert again.applied == table.applied == [["a", 1], ["b", [1, "x"]], ["a"], ["c", b"\xff"]]
    assert again.values == {"b": [1, "x"], "c": b"\xff"}
    assert again.record("d", 4) == 5
    assert not other.loaded.damage
    assert not other.loaded.lost
    assert read_values(tmp_path / "made" / "state") == {"b": [1, "x"], "c": b"\xff", "d": 4}


@pytest.mark.parametrize("kind", [Values, TwiceValues])
def test_torn_event_is_cut_and_later_ones_are_read(tmp_path: Path, kind: type[Values]) -> None:
    table = kind()
    opened(tmp_path, table)
    table.record("a", 1)
    begin = journal_path(tmp_path, 1).stat().st_size
    table.record("torn", "x" * 5)
    content = journal_path(tmp_path, 1).read_bytes()
    copy_bytes = (len(content) - begin) // kind.COPIES
    for end in range(begin, len(content)):
        journal_path(tmp_path, 1).write_bytes(content[:end])
        again = kind()
        journal = opened(tmp_path, again)
        whole = {"a": 1, "torn": "xxxxx"} if end >= begin + copy_bytes else {"a": 1}
        assert again.values == whole == read_values(tmp_path, kind)
        assert (journal.loaded.lost, journal.loaded.damage) == (0, [])
        again.record("b", 2)
        journal.close(compact=False)
        assert read_values(tmp_path, kind) == {**whole, "b": 2}


def test_changed_event_loses_only_itself(tmp_path: Path) -> None:
    table = Values()
    opened(tmp_path, table)
    ends = []
    for number in range(5):
        table.record(f"k{number}", number)
        ends.append(journal_path(tmp_path, 1).stat().st_size)
    content = journal_path(tmp_path, 1).read_bytes()
    for at in range(ends[1], ends[2]):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        journal_path(tmp_path, 1).write_bytes(changed)
        again = Values()
        journal = opened(tmp_path, again)
        is_read = at < ends[1] + 4  # a changed length is corrected
        kept = {"k2": 2} if is_read else {}
        assert again.values == {"k0": 0, "k1": 1, **kept, "k3": 3, "k4": 4}
        assert again.after_loss == ([] if is_read else [["k3", 3], ["k4", 4]])
        assert journal.loaded.lost == (0 if is_read else 1)
        assert journal.loaded.damage == [(journal_path(tmp_path, 1), ends[1], ends[2] - ends[1])]
        assert again.record("k5", 5) == 6
        journal.compact_after_damage()
        journal.close(compact=False)
        sound = Values()
        journal = opened(tmp_path, sound, writable=False)
        assert sound.values == {"k0": 0, "k1": 1, **kept, "k3": 3, "k4": 4, "k5": 5}
        assert (journal.loaded.lost, journal.loaded.damage) == (0, []), "no later start meets the damage"
        restore(tmp_path, {})


def test_one_changed_copy_of_an_event_loses_nothing(tmp_path: Path) -> None:
    table = TwiceValues()
    journal = opened(tmp_path, table)
    for number in range(3):
        table.record(f"k{number}", number)
    expected = dict(table.values)
    for is_snapshot in (False, True):
        if is_snapshot:
            journal.close(compact=True)
        path = snapshot_path(tmp_path, 4) if is_snapshot else journal_path(tmp_path, 1)
        content = path.read_bytes()
        for at in range(len(content)):
            changed = bytearray(content)
            changed[at] ^= 1 << at % 8
            path.write_bytes(changed)
            again = TwiceValues()
            loaded = opened(tmp_path, again, writable=False).loaded
            assert again.values == expected
            assert not again.after_loss
            assert loaded.lost == 0
        path.write_bytes(content)


def test_changed_copy_in_a_snapshot_is_reported(tmp_path: Path) -> None:
    table = TwiceValues()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    journal.close(compact=True)
    path = snapshot_path(tmp_path, 2)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    journal = opened(tmp_path, TwiceValues())
    assert [each[0] for each in journal.loaded.damage] == [path]
    journal.compact_after_damage()
    journal.close(compact=False)
    assert opened(tmp_path, TwiceValues(), writable=False).loaded.damage == []


def damaged_contents(content: bytes) -> Iterator[bytes]:
    """Yield the content with each byte changed, and cut at each byte."""
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        yield bytes(changed)
        yield content[:at]


@pytest.mark.parametrize("snapshots", [1, 2])
def test_damaged_newest_snapshot_loses_nothing(tmp_path: Path, snapshots: int) -> None:
    # Behind the first snapshot of a store are all events since its beginning.
    table = Values()
    journal = opened(tmp_path, table)
    for number in range(snapshots):
        table.record("a", number)
        table.record("gone", number)
        table.record("gone")
        journal.compact()
    table.record("b", 3)
    journal.close(compact=False)
    path = snapshot_path(tmp_path, 3 * snapshots + 1)
    files = contents(tmp_path)
    for content in damaged_contents(files[path.name]):
        restore(tmp_path, files)
        path.write_bytes(content)
        again = Values()
        journal = opened(tmp_path, again)
        assert again.values == table.values
        assert not again.after_loss
        assert journal.loaded.lost == 0
        assert journal.last == 3 * snapshots + 1
        journal.close(compact=False)


def test_damaged_snapshots_are_not_kept_as_spares(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    for number in range(2):
        table.record("a", number)
        journal.compact()
    table.record("b", 1)
    journal.close(compact=False)
    snapshot_path(tmp_path, 3).write_bytes(b"damaged")
    journal = opened(tmp_path, Values())
    journal.compact_after_damage()
    journal.close(compact=False)
    assert not snapshot_path(tmp_path, 3).exists()
    snapshot_path(tmp_path, 4).write_bytes(b"damaged, too")
    assert read_values(tmp_path) == {"a": 1, "b": 1}


def test_readable_parts_of_damaged_snapshots_are_used(tmp_path: Path) -> None:
    # As after a conversion: no journal has what the first snapshot has.
    table = Values()
    table.apply(["a", 1])
    table.apply(["b", 2])
    journal = opened(tmp_path, table)
    journal.compact()
    table.record("c", 3)
    journal.close(compact=False)
    path = snapshot_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[content.index(b"\xa1a")] ^= 1
    path.write_bytes(content)
    again = Values()
    journal = opened(tmp_path, again)
    assert journal.loaded.lost >= 1
    assert journal.has_snapshot
    assert again.values == {"b": 2, "c": 3}
    assert ["c", 3] in again.after_loss


def test_compactions_beside_appends_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 200)
    table = Values()
    journal = opened(tmp_path, table)

    def append(name: str) -> None:
        for number in range(400):
            table.record(f"{name}{number % 7}", number)
            if number % 5 == 0:
                table.record(f"{name}{number % 3}")

    threads = [threading.Thread(target=append, args=[name]) for name in "abc"]
    for thread in threads:
        thread.start()
    for _ in range(40):
        journal.compact()
        assert read_values(tmp_path).keys() <= {f"{name}{number}" for name in "abc" for number in range(7)}
    for thread in threads:
        thread.join()
    assert read_values(tmp_path) == table.values
    journal.close(compact=True)
    assert read_values(tmp_path) == table.values
    assert journal.last == 3 * 480


def test_long_journal_is_compacted_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 1_000)
    table = Values()
    journal = opened(tmp_path, table)
    for number in range(1_000):
        table.record("k", number)
        if journal._compaction is not None:
            journal._compaction.join()
    assert sum(map(len, contents(tmp_path).values())) < 10_000
    journal.close(compact=False)
    assert read_values(tmp_path) == {"k": 999}


STEPS = [f"{name}:{n}" for name in NAMES if name.startswith(("state.", "replace.")) for n in (1, 2, 3)]


@pytest.mark.parametrize("step", STEPS)
def test_kill_at_each_step_loses_no_acknowledged_event(tmp_path: Path, step: str) -> None:
    folder, acknowledged = tmp_path / "state", tmp_path / "acknowledged"

    def work() -> None:
        arm(step)
        table = Values()
        journal = opened(folder, table)
        with acknowledged.open("a") as told:
            for number in range(4):
                for each in range(3):
                    table.record(f"k{each}", 10 * number + each)
                    told.write(f"{10 * number + each} ")
                    told.flush()
                journal.compact()

    assert exit_code_of_child(work) in (-signal.SIGKILL, 7)
    written = [10 * number + each for number in range(4) for each in range(3)]
    count = len(acknowledged.read_text().split())
    states = [{f"k{each % 10}": each for each in written[:so_many]} for so_many in (count, count + 1)]
    assert read_values(folder) in states
    again = Values()
    journal = opened(folder, again)
    assert (journal.loaded.lost, journal.loaded.damage) == (0, [])
    again.record("later", 1)
    journal.close(compact=True)
    assert read_values(folder) == again.values
    assert not list(folder.glob("*.tmp"))


class FullCalls(FaultyCalls):
    """A full disk: calls that need no room are not refused."""

    def open(self, path: Path, flags: int) -> int:
        return super().open(path, flags) if flags & os.O_CREAT and not path.exists() else self._real.open(path, flags)


def change_everything(folder: Path, table: Values) -> None:
    journal = opened(folder, table)
    try:
        for number in range(3):
            table.record(f"k{number}", 1)
            journal.compact()
    finally:
        journal.close(compact=False)


ROOM = ("open", "write", "short_write", "truncate", "rename", "make_folder")


@pytest.mark.parametrize("kind", ROOM)
def test_full_disk_refuses_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    counted = FullCalls()
    with replaced(counted):
        change_everything(tmp_path / "counted" / "state", Values())
    calls = counted.counts["write" if kind == "short_write" else kind]
    assert calls
    for nth in range(1, calls + 1):
        for lasting in (False, True):
            folder = tmp_path / f"{nth}{lasting}" / "state"
            table = Values()
            full = FullCalls(kind, nth, errno.ENOSPC, lasting=lasting)
            with replaced(full), pytest.raises(StoreFull):
                change_everything(folder, table)
            assert full.failed
            assert read_values(folder) == table.values
            journal = opened(folder, table)
            assert (journal.loaded.lost, journal.loaded.damage) == (0, [])
            journal.close(compact=False)
            change_everything(folder, table)
            assert read_values(folder) == table.values == {"k0": 1, "k1": 1, "k2": 1}


def test_full_disk_refuses_events_one_by_one(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    with replaced(FullDisk(0)):
        with pytest.raises(StoreFull):
            table.record("b", 1)
        with pytest.raises(StoreFull):
            journal.compact()
    assert table.values == read_values(tmp_path) == {"a": 1}
    assert table.record("c", 1) == 2
    journal.close(compact=True)
    assert read_values(tmp_path) == {"a": 1, "c": 1}


def test_torn_write_is_cut_before_the_next_event(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    short = FaultyCalls("short_write", 1, errno.ENOSPC)
    with replaced(FaultyCalls("truncate", 1, errno.EIO, real=short)), pytest.raises(StoreFull):
        table.record("torn", 1)
    assert read_values(tmp_path) == {"a": 1}
    with replaced(FaultyCalls("truncate", 1, errno.EIO)), pytest.raises(StoreFailed):
        table.record("refused", 1)
    assert table.record("b", 2) == 2
    assert read_values(tmp_path) == table.values == {"a": 1, "b": 2}
    journal.close(compact=False)


def test_failed_sync_fails_the_journal_for_good(tmp_path: Path) -> None:
    table = Values()
    failures: list[StoreError] = []
    journal = StateJournal(tmp_path, [table], writable=True, on_failure=failures.append)
    table.record("a", 1)
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        journal.sync()
    assert len(failures) == 1
    for work in (lambda: table.record("b", 1), journal.sync, journal.compact, lambda: table.record_durably(("c", 1))):
        with pytest.raises(StoreFailed, match="failed before"):
            work()
    with pytest.raises(StoreFailed):
        journal.close(compact=True)
    assert read_values(tmp_path) == table.values == {"a": 1}


def test_sync_without_a_descriptor_may_be_repeated(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    with replaced(FaultyCalls("duplicate", 1, errno.ENOSPC)), pytest.raises(StoreError):
        table.record_durably(("a", 1))
    counted = FaultyCalls()
    with replaced(counted):
        journal.sync()
        journal.sync()
        table.record_durably(("b", 1), ("c", 1))
        table.record_durably()
    assert counted.counts["fdatasync"] == 2


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_synced_events_survive_a_loss_of_power(tmp_path: Path, seed: int, luck: float) -> None:
    chance = random.Random(seed)
    root = tmp_path / "root"
    root.mkdir()
    disk = Disk(root)
    synced: dict[str, int] = {}
    with replaced(disk):
        table = Values()
        journal = opened(root / "state", table)
        for number in range(30):
            table.record(f"k{number}", number)
            step = chance.random()
            if step < 0.2:
                with journal._appending:
                    journal._begin_file()
            elif step < 0.3:
                journal.compact()
                synced = dict(table.values)
            elif step < 0.5:
                journal.sync()
                synced = dict(table.values)
            if chance.random() < 0.3:
                lost = tmp_path / str(number)
                disk.after_power_loss(lost, chance, luck)
                left = read_values(lost / "state")
                assert synced.items() <= left.items() <= table.values.items()
        journal.close(compact=False)
    disk.close()


def test_store_after_a_failed_sync_writes_its_state_again(tmp_path: Path) -> None:
    # After a failed sync the pages count as written, so that another sync of them would prove nothing.
    root = tmp_path / "store"
    root.mkdir()
    disk = Disk(root)
    config = replace(SMALL, flush_interval_ms=3_600_000)
    with replaced(disk):
        store = Store.open(root, config)
        disk.fails_below = root / "raymq" / "state"
        with pytest.raises(StoreFailed):
            store.tables.coordinators.remember("stream", "key", "broker-a")
        store._flusher.stop()
        store._abandon()
        store = Store.open(root, config)
        assert store.tables.coordinators.remember("stream", "key", "broker-b") == "broker-a"
        disk.after_power_loss(tmp_path / "left", random.Random(1), 0.0)
        store._flusher.stop()
        store._abandon()
    disk.close()
    with Store.open(tmp_path / "left", config) as store:
        assert store.tables.coordinators.find("stream", "key") == "broker-a"


def test_event_whose_announcement_fails_is_removed(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    seen: list[dict[str, int]] = []

    def refuse() -> None:
        seen.append(dict(table.values))
        raise KeyError("refused")

    with pytest.raises(KeyError):
        journal.append(table, ("b", 1), refuse)
    assert seen == [{"a": 1}], "it is called before the event is applied"
    assert table.values == read_values(tmp_path) == {"a": 1}
    with replaced(FaultyCalls("truncate", 1, errno.EIO)), pytest.raises(KeyError):
        journal.append(table, ("b", 2), refuse)
    assert journal.append(table, ("c", 3), lambda: seen.append(dict(table.values))) == 2
    assert table.values == read_values(tmp_path) == {"a": 1, "c": 3}
    journal.close(compact=False)


def test_events_without_a_meaning_are_set_aside(tmp_path: Path) -> None:
    table = Values()
    opened(tmp_path, table)
    table.record("a", 1)
    content = journal_path(tmp_path, 1).read_bytes()
    others = [(2, 0, 99, "of no table"), (3, 0, Values.NUMBER), (4, 0, Values.NUMBER, 17, 18), (5, 0, 200, "b", 2)]
    strange = [(), (1,), ("x", 0, Values.NUMBER, "y", 1), (6, -1, Values.NUMBER, "y", 1)]
    frames = b"".join(encode_frame(each) for each in (*others, *strange) if each)
    journal_path(tmp_path, 1).write_bytes(content + frames)
    again = Values()
    journal = opened(tmp_path, again)
    assert again.values == {"a": 1, "b": 2}
    assert not again.after_loss
    assert [(each.number, each.table) for each in journal.loaded.set_aside] == [(2, 99), (3, 200), (4, 200)]
    assert journal.loaded.lost == 0
    assert "event 2 of table 99 (['of no table'])" in str(journal.loaded.set_aside[0])
    assert len(str(SetAsideEvent(1, 1, "x" * 10_000, "y" * 10_000))) < 500
    journal.compact_after_damage()
    journal.close(compact=False)
    assert opened(tmp_path, Values(), writable=False).loaded.set_aside == []


def test_read_only_opening_reads_and_writes_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    table = Values()
    journal = opened(missing, table, writable=False)
    with pytest.raises(StoreError, match="read-only"):
        table.record("a", 1)
    with pytest.raises(StoreError, match="read-only"):
        journal.append(table, ("a", 1))
    with pytest.raises(StoreError, match="read-only"):
        journal.compact()
    journal.close(compact=True)
    assert not missing.exists()
    writer = Values()
    opened(tmp_path / "state", writer)
    writer.record("a", 1)
    with journal_path(tmp_path / "state", 1).open("ab") as file:
        file.write(b"\0\0\0\x09torn")
    before = contents(tmp_path / "state")
    calls = FaultyCalls()
    with replaced(calls):
        table = Values()
        journal = opened(tmp_path / "state", table, writable=False)
        journal.sync()
        journal.close(compact=True)
    assert table.values == {"a": 1}
    assert contents(tmp_path / "state") == before
    assert calls.counts.keys() <= {"open", "scan"}


class RemovedMeanwhile(FileCalls):
    """Let the writer compact before the reader opens its first file."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def open(self, path: Path, flags: int) -> int:
        work, self._work = self._work, None
        if work is not None:
            work()
        return super().open(path, flags)


def test_reader_beside_a_compacting_writer_sees_all(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    journal.compact()

    def go_on() -> None:
        for number in range(3):
            table.record("b", number)
            journal.compact()

    with replaced(RemovedMeanwhile(go_on)):
        assert read_values(tmp_path) == {"a": 1, "b": 2}
    journal.close(compact=False)


def test_two_snapshots_and_the_journals_behind_are_kept(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    kept = []
    for number in range(4):
        table.record("a", number)
        table.record("b", number)
        journal.compact()
        kept.append(sorted(name.replace("0" * 19, "") for name in contents(tmp_path)))
    journal.close(compact=False)
    assert kept == [
        ["journal-1", "journal-3", "snapshot-3"],
        ["journal-3", "journal-5", "snapshot-3", "snapshot-5"],
        ["journal-5", "journal-7", "snapshot-5", "snapshot-7"],
        ["journal-7", "journal-9", "snapshot-7", "snapshot-9"],
    ]
    assert read_values(tmp_path) == {"a": 3, "b": 3}


def test_rest_of_an_interrupted_snapshot_is_removed(tmp_path: Path) -> None:
    opened(tmp_path, Values()).close(compact=False)
    path = snapshot_path(tmp_path, 17)
    path.with_name(path.name + ".tmp").write_bytes(b"x")
    opened(tmp_path, Values(), writable=False)
    assert len(contents(tmp_path)) == 2
    opened(tmp_path, Values()).close(compact=False)
    assert len(contents(tmp_path)) == 1


def test_close_writes_a_snapshot_only_after_changes(tmp_path: Path) -> None:
    opened(tmp_path, Values()).close(compact=True)
    assert sorted(contents(tmp_path)) == [journal_path(tmp_path, 1).name], "no snapshot of nothing"
    table = Values()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    journal.close(compact=True)
    journal.close(compact=True)
    assert snapshot_path(tmp_path, 2).exists()
    calls = FaultyCalls()
    with replaced(calls):
        opened(tmp_path, Values()).close(compact=True)
    assert not calls.counts["rename"]
    assert not calls.counts["write"]
    again = Values()
    journal = opened(tmp_path, again)
    again.record("b", 1)
    journal.close(compact=False)
    assert not snapshot_path(tmp_path, 3).exists()
    opened(tmp_path, Values()).close(compact=True)
    assert snapshot_path(tmp_path, 3).exists()
    assert read_values(tmp_path) == {"a": 1, "b": 1}


@pytest.mark.parametrize("is_killed", [False, True])
def test_close_after_a_failed_compaction_writes_a_snapshot(tmp_path: Path, *, is_killed: bool) -> None:
    # Its events are in the file before the newest one, perhaps not on disk.
    table = Values()
    journal = opened(tmp_path, table)
    journal.compact()
    table.record("a", 1)
    with replaced(FaultyCalls("rename", 1, errno.ENOSPC)), pytest.raises(StoreFull):
        journal.compact()
    if is_killed:
        journal = opened(tmp_path, Values())
    journal.close(compact=True)
    assert snapshot_path(tmp_path, 2).exists()


def test_closed_journal_refuses_changes_and_durability(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    number = table.record("a", 1)
    journal.close(compact=False)
    with pytest.raises(StoreError, match="closed"):
        table.record("b", 1)
    with pytest.raises(StoreError, match="closed"):
        journal.compact()
    with pytest.raises(StoreError, match="closed"):
        journal.sync(number)
    journal.sync()
    assert read_values(tmp_path) == table.values == {"a": 1}


def test_compaction_ends_before_the_journal_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another process may own the directory afterwards.
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 1)
    table = Values()
    journal = opened(tmp_path, table)
    closing = threading.Event()

    def append() -> None:
        try:
            for number in range(10_000):
                table.record("k", number)
                if number == 20:
                    closing.set()
        except StoreError:
            pass

    thread = threading.Thread(target=append)
    thread.start()
    closing.wait()
    journal.close(compact=False)
    left = contents(tmp_path)
    thread.join()
    assert not [each for each in threading.enumerate() if each.name == "raymq-state"]
    assert contents(tmp_path) == left
    assert read_values(tmp_path) == table.values


def test_numbers_go_on_after_a_damaged_last_event(tmp_path: Path) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    table.record("a", 1)
    table.record("b", 2)
    journal.close(compact=False)
    path = journal_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    again = Values()
    journal = opened(tmp_path, again)
    assert again.values == {"a": 1}
    assert len(journal.loaded.damage) == 1
    number = again.record("c", 3)
    assert number >= 2
    journal.close(compact=False)
    assert read_values(tmp_path) == {"a": 1, "c": 3}
    later = Values()
    assert opened(tmp_path, later).last == number
    assert later.record("d", 4) == number + 1


@pytest.mark.parametrize("damage", ["nothing", "the last event before", "all events"])
def test_numbers_go_on_behind_the_newest_file(tmp_path: Path, damage: str) -> None:
    table = Values()
    journal = opened(tmp_path, table)
    for number in range(3):
        table.record(f"k{number}", number)
    with journal._appending:
        journal._begin_file()
    journal.close(compact=False)
    path = journal_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    if damage == "the last event before":
        content[-1] ^= 1
    if damage == "all events":
        content = bytearray(len(content))
    path.write_bytes(content)
    again = Values()
    journal = opened(tmp_path, again)
    assert journal.last == 3
    assert again.record("new", 1) == 4
    journal.close(compact=False)
    expected = {"nothing": {"k0", "k1", "k2"}, "the last event before": {"k0", "k1"}, "all events": set()}[damage]
    assert read_values(tmp_path).keys() == expected | {"new"}
    assert sorted(contents(tmp_path)) == [journal_path(tmp_path, 1).name, journal_path(tmp_path, 4).name]
