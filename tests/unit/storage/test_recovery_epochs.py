"""Test the recovery epoch, raised where the log may have lost records (fault 13.13)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import store as store_module
from raymq.storage.files.json_file import DECODE_ERRORS
from raymq.storage.store import Store
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from tests.fake_machine import Machine
from tests.state_journals import open_table
from tests.store_records import SMALL, append, flip_byte, make_record


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def kill_store(store: Store) -> None:
    """Leave the store as a kill would."""
    store._flusher.stop()
    store._abandon()


def open_epochs(directory: Path) -> RecoveryEpochs:
    """Open the table as a restart would."""
    epochs = open_table(directory, RecoveryEpochs())
    if not epochs.is_begun:
        epochs.record(*epochs.beginning())
    return epochs


def test_truncation_is_known_for_each_former_epoch(tmp_path: Path) -> None:
    epochs = open_epochs(tmp_path)
    known = [epochs.current]
    assert (epochs.truncated_at_open, epochs.truncated_since(known[0])) == (None, None)
    epochs.cut(500)
    known.append(epochs.current)
    assert epochs.truncated_at_open == 500
    for log_end in (300, 900):
        epochs = open_epochs(tmp_path)
        assert (epochs.current, epochs.truncated_at_open) == (known[-1], None)
        epochs.cut(log_end)
        known.append(epochs.current)
    # A reader of the first epoch lost all behind the smallest cut since; one of the third, behind its end.
    assert [epochs.truncated_since(epoch) for epoch in known] == [300, 300, 900, None]


def test_election_is_stored_with_its_truncation(tmp_path: Path) -> None:
    epochs = open_epochs(tmp_path)
    assert epochs.election == 0
    epochs.cut(500, election=7)
    epochs.cut(600)
    assert [each.election for each in (epochs, open_epochs(tmp_path))] == [7, 7]
    assert epochs.truncated_at_open == 500


def test_forgotten_epoch_is_truncated_at_0(tmp_path: Path) -> None:
    epochs = open_epochs(tmp_path)
    known = [epochs.current]
    for number in range(200):
        epochs.cut(1000 + number)
        known.append(epochs.current)
    epochs = open_epochs(tmp_path)
    assert [epochs.truncated_since(known[number]) for number in (0, 135, 136, 199, 200)] == [0, 0, 1136, 1199, None]


def test_lost_journal_begins_an_unknown_epoch(tmp_path: Path) -> None:
    # A reader of a forgotten epoch reads again, also if the log was truncated since.
    epochs = open_epochs(tmp_path)
    known = [epochs.current]
    epochs.cut(500)
    known.append(epochs.current)
    shutil.rmtree(tmp_path / "raymq" / "state")
    epochs = open_epochs(tmp_path)
    anew = epochs.current
    assert anew not in known
    assert [epochs.truncated_since(epoch) for epoch in (*known, 1, anew)] == [0, 0, 0, None]
    epochs.cut(300)
    assert [epochs.truncated_since(epoch) for epoch in (*known, 1, anew, epochs.current)] == [0, 0, 0, 300, None]


@pytest.mark.parametrize(
    "fields", [(0, [], 0), (1, [[0, 5]], 0), (1, [[5, -1]], 0), (1, [[5]], 0), (1, 7, 0), (1 << 62, [], 0), (1, [])]
)
def test_event_that_is_no_epoch_is_refused(fields: tuple[object, ...]) -> None:
    epochs = RecoveryEpochs()
    with pytest.raises(DECODE_ERRORS):
        epochs.apply(fields)
    assert not epochs.is_begun


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "whole"])
def test_lost_events_make_all_readers_read_again(tmp_path: Path, is_lost: bool) -> None:
    # The lost event may be the newest truncation: without it the epochs would look complete.
    store = Store.open(tmp_path, SMALL)
    append(store, make_record())
    first = store.epoch
    for offset in range(4):
        store.consumer_offsets.commit("g", "orders", 0, offset)
    kill_store(store)
    if is_lost:
        journal = max((tmp_path / "raymq" / "state").glob("journal-*"))
        flip_byte(journal, journal.stat().st_size - 60)
    with Store.open(tmp_path, SMALL, read_only=True) as store:
        assert store.valid_to("orders", 0, first) == (0 if is_lost else None)
    with Store.open(tmp_path, SMALL) as store:
        assert (store.epoch != first) is is_lost
        assert store.valid_to("orders", 0, first) == (0 if is_lost else None)
        second = store.epoch
    with Store.open(tmp_path, SMALL) as store:  # the damage counts once
        assert store.epoch == second


def test_loss_is_recorded_once_per_election(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"a"), make_record(b"b"))
        first, end = store.epoch, store.max_physical_offset
        assert not store.record_loss(end, 0)
        assert store.epoch == first
        assert store.record_loss(end, 3)
        assert store.valid_at_open("orders", 0) == 2
        assert not store.record_loss(end, 3)
    with Store.open(tmp_path, SMALL) as store:
        second = store.epoch
        assert second != first
        assert not store.record_loss(end, 2)
        assert store.record_loss(end // 2, 4)
        assert [store.valid_to("orders", 0, epoch) for epoch in (first, second)] == [1, 1]


def test_clean_stop_and_kill_keep_the_epoch(tmp_path: Path, machine: Machine) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        append(store, make_record())
        cut = store.max_physical_offset
        first = store.epoch
    machine.lose_power(tmp_path / "s", cut)
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    kill_store(store)
    with Store.open(tmp_path / "s", SMALL) as store:
        assert store.epoch == first
        assert store.valid_to("orders", 0, first) is store.valid_at_open("orders", 0) is None


def test_power_loss_raises_the_epoch_and_bounds_each_queue(tmp_path: Path, machine: Machine) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, *(make_record(b"%d" % n, queue_id=n % 2) for n in range(6)))
    cut = store.max_physical_offset
    append(store, *(make_record(b"%d" % n, queue_id=n % 2) for n in range(6, 10)))
    append(store, make_record(queue_id=2))
    first = store.epoch
    kill_store(store)
    machine.lose_power(tmp_path / "s", cut)
    store = Store.open(tmp_path / "s", SMALL)
    newest = store.epoch
    assert newest != first
    append(store, *(make_record(b"new %d" % n, queue_id=n % 2) for n in range(10)))
    assert store.max_offset("orders", 0) == 8
    assert [store.valid_to("orders", queue_id, first) for queue_id in range(3)] == [3, 3, 0]
    assert [store.valid_at_open("orders", queue_id) for queue_id in range(3)] == [3, 3, 0]
    assert store.valid_to("orders", 0, store.epoch) is None
    store.close()
    with Store.open(tmp_path / "s", SMALL) as store:  # A clean start changes nothing.
        assert (store.epoch, store.valid_to("orders", 0, first)) == (newest, 3)
        assert store.valid_at_open("orders", 0) is None


@pytest.mark.parametrize("point", ["open.before_checkpoint", "checkpoint.before_state"])
def test_epoch_is_written_before_the_state_of_the_new_boot(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    cut = store.max_physical_offset
    append(store, make_record())
    first = store.epoch
    kill_store(store)
    machine.lose_power(tmp_path / "s", cut)

    class Died(Exception):
        pass

    def die(name: str) -> None:
        if name == point:
            raise Died

    with monkeypatch.context() as patch:
        for module in (store_module, checkpointing_module):
            patch.setattr(module, "failpoint", die)
        with pytest.raises(Died):
            Store.open(tmp_path / "s", SMALL)
    with Store.open(tmp_path / "s", SMALL) as store:
        assert store.epoch != first
        assert store.valid_to("orders", 0, first) == 1


def test_read_only_open_writes_no_epoch(tmp_path: Path, machine: Machine) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    end = store.max_physical_offset
    kill_store(store)
    machine.lose_power(tmp_path / "s", end)
    shutil.rmtree(tmp_path / "s" / "raymq" / "state")
    with Store.open(tmp_path / "s", SMALL, read_only=True) as store:
        assert store.epoch > 0
    assert not (tmp_path / "s" / "raymq" / "state").exists()
