"""Test the recovery epoch, raised where the log may have lost records (fault 13.13)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import store as store_module
from raymq.storage.store import Store
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from tests.fake_machine import Machine
from tests.store_records import SMALL, append, make_record


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def kill_store(store: Store) -> None:
    """Leave the store as a kill would."""
    store._flusher.stop()
    store._abandon()


def test_truncation_is_known_for_each_former_epoch(tmp_path: Path) -> None:
    epochs = RecoveryEpochs(tmp_path / "epochs.json")
    known = [epochs.current]
    assert (epochs.truncated_at_open, epochs.truncated_since(known[0])) == (None, None)
    epochs.cut(500)
    known.append(epochs.current)
    assert epochs.truncated_at_open == 500
    for log_end in (300, 900):
        epochs = RecoveryEpochs(tmp_path / "epochs.json")
        assert (epochs.current, epochs.truncated_at_open) == (known[-1], None)
        epochs.cut(log_end)
        known.append(epochs.current)
    # A reader of the first epoch lost all behind the smallest cut since; one of the third, behind its end.
    assert [epochs.truncated_since(epoch) for epoch in known] == [300, 300, 900, None]


def test_election_is_stored_with_its_truncation(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    epochs = RecoveryEpochs(path)
    assert epochs.election == 0
    epochs.cut(500, election=7)
    epochs.cut(600)
    assert [each.election for each in (epochs, RecoveryEpochs(path))] == [7, 7]


def test_forgotten_epoch_is_truncated_at_0(tmp_path: Path) -> None:
    epochs = RecoveryEpochs(tmp_path / "epochs.json")
    known = [epochs.current]
    for number in range(200):
        epochs.cut(1000 + number)
        known.append(epochs.current)
    epochs = RecoveryEpochs(tmp_path / "epochs.json")
    assert [epochs.truncated_since(known[number]) for number in (0, 135, 136, 199, 200)] == [0, 0, 1136, 1199, None]


@pytest.mark.parametrize("left", [None, b"", b"{", b"[]", b'{"epoch":7,"first":6,"cuts":[[5,400]]}'])
def test_epoch_is_never_reused_after_file_damage(tmp_path: Path, left: bytes | None) -> None:
    # A reader of a forgotten epoch reads again, also if the log was truncated since.
    path = tmp_path / "epochs.json"
    epochs = RecoveryEpochs(path)
    known = [epochs.current]
    epochs.cut(500)
    known.append(epochs.current)
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)
    anew = RecoveryEpochs(path).current
    assert anew not in known
    epochs = RecoveryEpochs(path)
    assert [epochs.truncated_since(epoch) for epoch in (*known, 1, anew)] == [0, 0, 0, None]
    epochs.cut(300)
    assert [epochs.truncated_since(epoch) for epoch in (*known, 1, anew, epochs.current)] == [0, 0, 0, 300, None]


def test_older_epoch_file_does_not_hide_newer_epochs(tmp_path: Path) -> None:
    # The newest content is lost: a reader of the newest epoch must learn it at once, before the next cut.
    path = tmp_path / "epochs.json"
    epochs = RecoveryEpochs(path)
    first, before = epochs.current, path.read_bytes()
    epochs.cut(500)
    newest = epochs.current
    assert not path.with_name("epochs.json.bak").exists()
    path.write_bytes(before)
    epochs = RecoveryEpochs(path)
    assert epochs.truncated_since(newest) == 0
    epochs.cut(900)
    assert epochs.current not in (first, newest)
    assert epochs.truncated_since(newest) == 0


def test_epochs_of_the_former_file_format_are_read(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    path.write_text('{"epoch":3,"cuts":[[2,500],[3,700]]}')
    assert [RecoveryEpochs(path).truncated_since(epoch) for epoch in (1, 2, 3, 4)] == [500, 700, None, 0]


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


def test_read_only_open_writes_no_epoch_file(tmp_path: Path, machine: Machine) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    end = store.max_physical_offset
    kill_store(store)
    machine.lose_power(tmp_path / "s", end)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    (tmp_path / "copy" / "raymq" / "epochs.json").unlink()
    Store.open(tmp_path / "copy", SMALL, read_only=True).close()
    assert not (tmp_path / "copy" / "raymq" / "epochs.json").exists()
