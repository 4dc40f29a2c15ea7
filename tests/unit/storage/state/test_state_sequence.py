"""Test the sequence numbers of state changes: never reused, and exact or invalid."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.reconciliation import (
    ContinueFrom,
    InstallSnapshot,
    SnapshotReason,
    StreamExtent,
    reconcile,
)
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage import checkpointer, store_parts, table_repair
from raymq.storage.errors import InvalidInput, StoreError, StoreFull
from raymq.storage.files import fileutil
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.journal_frames import encode_frame
from raymq.storage.state import sequence_file
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.faulty_calls import FaultyCalls
from tests.state_shipping import ship_state, state_of, take_snapshot
from tests.store_records import SMALL

EPOCHS = EpochMap([EpochStart(3, StreamPosition(0, 0))])


def begin_recorder(directory: Path, predecessor: StateReplica | None = None) -> StateRecorder:
    return StateRecorder.begin(directory, log_end=lambda: 0, predecessor=predecessor)


class AppendedFile:
    """A state file whose entries are appended by the store's file calls."""

    def __init__(self, path: Path) -> None:
        fileutil.make_folder(path.parent)
        self._path = path
        self._fd = fileutil.open_for_append(path)
        self._length = path.stat().st_size

    def append(self, entry: tuple[object, ...]) -> None:
        frame = encode_frame(entry)
        try:
            fileutil.write_all(self._fd, frame, self._path)
        except StoreError:
            fileutil.truncate(self._fd, self._length, self._path)
            raise
        self._length += len(frame)


def open_journal(directory: Path) -> AppendedFile:
    return AppendedFile(directory / "raymq" / "some.journal")


def reconcile_states(master: StateRecorder, replica: StateReplica) -> object:
    """Return what the master answers, where both have the same log."""
    has = StreamPosition(0, replica.last)
    extent = StreamExtent(EPOCHS, StreamPosition(0, master.folded), StreamPosition(0, master.last))
    return reconcile(extent, StreamExtent(EPOCHS, has, has))


def needs_snapshot(master: StateRecorder, replica: StateReplica) -> bool:
    found = reconcile_states(master, replica)
    if isinstance(found, InstallSnapshot):
        assert found.reason is SnapshotReason.STATE_FOLDED
        assert found.keeps_log
        return True
    assert isinstance(found, ContinueFrom)
    return False


def test_sequence_number_survives_a_kill(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path)
    journal = open_journal(tmp_path)
    for number in range(5):
        journal.append((number,))
    numbers = SequenceFile(tmp_path)  # as another process finds it
    assert numbers.is_exact
    assert numbers.done == recorder.last
    recorder.stop()
    again = begin_recorder(tmp_path)
    assert again.last == again.folded == recorder.last, "changes from before the start are in the files alone"
    again.stop()


def test_recorder_killed_within_a_change_takes_an_unused_number(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path / "master")
    open_journal(tmp_path / "master").append(("x",))
    replica = StateReplica(tmp_path / "replica")
    take_snapshot(recorder, replica)
    recorder._numbers.begin(recorder.last + 1)  # begun and not finished
    recorder.stop()
    assert StateReplica(tmp_path / "master").last == 0, "nobody knows what is there"
    again = begin_recorder(tmp_path / "master")
    assert again.last == again.folded > recorder.last + 1
    assert needs_snapshot(again, replica)
    take_snapshot(again, replica)
    assert not needs_snapshot(again, replica)
    again.stop()


def test_reboot_invalidates_the_sequence_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = begin_recorder(tmp_path)
    open_journal(tmp_path).append(("x",))
    recorder.stop()
    monkeypatch.setattr(sequence_file, "boot_id", lambda: "another boot")
    assert StateReplica(tmp_path).last == 0
    again = begin_recorder(tmp_path)
    assert again.last > recorder.last
    again.stop()
    assert StateReplica(tmp_path).last == again.last
    monkeypatch.setattr(sequence_file, "boot_id", lambda: "")
    assert StateReplica(tmp_path).last == 0, "where the kernel does not name its boots nothing is certain"


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 64, b"\0" * 64, b"\xff" * 65])
def test_malformed_sequence_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raymq").mkdir()
    (tmp_path / "raymq" / "state_sequence").write_bytes(content)
    assert StateReplica(tmp_path).last == 0
    recorder = begin_recorder(tmp_path)
    assert recorder.last == recorder.folded > 0
    recorder.stop()


def test_directories_begin_with_different_numbers(tmp_path: Path) -> None:
    begun = set()
    for number in range(50):
        recorder = begin_recorder(tmp_path / str(number))
        begun.add(recorder.last)
        recorder.stop()
    assert len(begun) == 50


def test_store_open_without_recorder_invalidates_the_number(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path)
    Store.open(tmp_path, SMALL).close()
    recorder.stop()
    assert StateReplica(tmp_path).last == recorder.last
    Store.open(tmp_path, SMALL, is_replica=True).close()
    assert StateReplica(tmp_path).last == recorder.last
    Store.open(tmp_path, SMALL, read_only=True).close()
    assert StateReplica(tmp_path).last == recorder.last
    Store.open(tmp_path, SMALL).close()
    assert StateReplica(tmp_path).last == 0


def test_table_repair_invalidates_the_sequence_number(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path)
    Store.open(tmp_path, SMALL).close()
    recorder.stop()
    assert StateReplica(tmp_path).last == recorder.last
    table_repair.repair(tmp_path)
    assert StateReplica(tmp_path).last == 0


def test_second_recorder_of_a_directory_is_refused(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path)
    with pytest.raises(InvalidInput):
        begin_recorder(tmp_path)
    recorder.stop()
    recorder.stop()
    begin_recorder(tmp_path).stop()


def test_promoted_replica_continues_numbers_and_backlog(tmp_path: Path) -> None:
    # Without a restart in between, no other replica needs a snapshot.
    master = begin_recorder(tmp_path / "1")
    journal = open_journal(tmp_path / "1")
    second, third = StateReplica(tmp_path / "2"), StateReplica(tmp_path / "3")
    take_snapshot(master, second)
    take_snapshot(master, third)
    journal.append(("of the first",))
    ship_state(master, third)
    for number in range(5):
        journal.append((number,))
    ship_state(master, second)
    master.stop()
    successor = begin_recorder(tmp_path / "2", predecessor=second)
    assert successor.last == master.last
    assert third.last < successor.last
    assert not needs_snapshot(successor, third)
    open_journal(tmp_path / "2").append(("of the second",))
    ship_state(successor, third)
    assert state_of(tmp_path / "3") == state_of(tmp_path / "2")
    back = StateReplica(tmp_path / "2", predecessor=successor)
    assert (back.last, back.folded) == (successor.last, successor.folded)
    assert [each.sequence for each in back.after(back.folded)] == list(range(back.folded + 1, back.last + 1))
    open_journal(tmp_path / "2").append(("of nobody",))
    assert back.last == 0


def test_change_refused_by_the_disk_gets_no_number(tmp_path: Path) -> None:
    calls = FaultyCalls("write", 4, errno.ENOSPC)
    with replaced(calls):
        recorder = begin_recorder(tmp_path)
        journal = open_journal(tmp_path)
        journal.append((1,))
        last = recorder.last
        while not calls.failed:
            try:
                journal.append((2,))
                last += 1
            except StoreFull:
                last += 1  # the partial write is truncated, which is a change
        assert recorder.last == last
        journal.append((3,))
        assert recorder.last == last + 1
        recorder.stop()
    numbers = SequenceFile(tmp_path)
    assert (numbers.done, numbers.is_exact) == (last + 1, True)


def test_replica_needs_a_snapshot_after_a_disk_error(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path / "master")
    journal = open_journal(tmp_path / "master")
    replica = StateReplica(tmp_path / "replica")
    take_snapshot(recorder, replica)
    for number in range(3):
        journal.append((number,))
    with replaced(FaultyCalls("write", 2, errno.EIO)), pytest.raises(StoreError):
        replica.apply(recorder.after(replica.last))
    assert replica.last == 0
    assert needs_snapshot(recorder, replica)
    take_snapshot(recorder, replica)
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")
    recorder.stop()


def test_file_moved_out_of_the_state_requires_snapshots(tmp_path: Path) -> None:
    recorder = begin_recorder(tmp_path / "master")
    replica = StateReplica(tmp_path / "replica")
    take_snapshot(recorder, replica)
    path = tmp_path / "master" / "config" / "x.json"
    path.parent.mkdir()
    fileutil.replace(path, json.dumps({}).encode())
    aside = tmp_path / "master" / "raymq" / "damaged"
    fileutil.make_folder(aside)
    fileutil.rename(path, aside / "x.json")
    assert needs_snapshot(recorder, replica)
    take_snapshot(recorder, replica)
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")
    recorder.stop()


def test_replica_elected_after_power_loss_reports_lost_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The replica opened its store first, in the same boot, and recovered only the log.
    StateReplica(tmp_path).close()
    Store.open(tmp_path, SMALL, is_replica=True).close()
    for module in (sequence_file, store_parts, checkpointer):
        monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    replica = StateReplica(tmp_path)
    Store.open(tmp_path, SMALL, is_replica=True).close()
    recorder = begin_recorder(tmp_path, replica)
    with Store.open(tmp_path, SMALL) as store:
        assert store.recovery_bounds.memory_lost
    recorder.stop()


def test_replica_elected_after_a_snapshot_has_whole_tables(tmp_path: Path) -> None:
    master = begin_recorder(tmp_path / "master")
    replica = StateReplica(tmp_path / "replica")
    take_snapshot(master, replica)
    Store.open(replica.directory, SMALL, is_replica=True).close()
    recorder = begin_recorder(replica.directory, replica)
    with Store.open(replica.directory, SMALL) as store:
        assert not store.recovery_bounds.memory_lost
    recorder.stop()
    master.stop()


@pytest.mark.parametrize("year", [2100, 2248, 9999, 200_000])
def test_sequence_numbers_grow_with_a_clock_far_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, year: int
) -> None:
    monkeypatch.setattr(sequence_file, "wall_ms", lambda: (year - 1970) * 31_556_952_000)
    numbers = SequenceFile(tmp_path)
    before = 0
    for _ in range(3):
        numbers.set(numbers.next_unused())
        assert numbers.done > before
        before = numbers.done
    numbers.close()
