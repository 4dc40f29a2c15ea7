"""The recovery epoch: raised where the log may have lost what was read, with where it was cut (fault 13.13)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raymq.storage import store as store_module
from raymq.storage.epochs import FIRST, Epochs
from raymq.storage.errors import StoreCorrupt
from raymq.storage.store import Store
from tests.machine import Machine
from tests.stored import SMALL, append, make_record


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def vanish(store: Store) -> None:
    """What a kill leaves."""
    store._flusher.stop()
    store._abandon()


def test_a_cut_is_told_to_who_read_before_it(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "epochs.json")
    assert (epochs.current, epochs.was_cut, epochs.cut_since(FIRST)) == (FIRST, False, None)
    epochs.cut(500)
    assert (epochs.current, epochs.was_cut) == (2, True)
    Epochs(tmp_path / "epochs.json").cut(300)
    epochs = Epochs(tmp_path / "epochs.json")
    epochs.cut(900)
    # Who read in the first epoch has lost all behind the smallest cut since, who read in the third behind its end.
    assert [epochs.cut_since(epoch) for epoch in (1, 2, 3, 4)] == [300, 300, 900, None]


def test_who_comes_from_before_all_that_is_known_is_sent_back_the_furthest(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "epochs.json")
    for number in range(200):
        epochs.cut(1000 + number)
    assert epochs.cut_since(1) == 1136
    assert len(epochs._cuts) == 64


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "epochs.json").write_text("{")
    with pytest.raises(StoreCorrupt):
        Epochs(tmp_path / "epochs.json")


def test_neither_a_clean_stop_nor_a_kill_raises_the_epoch(tmp_path: Path, machine: Machine) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        append(store, make_record())
        cut = store.max_physical_offset
        assert store.epoch == FIRST
    machine.lose_power(tmp_path / "s", cut)
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    vanish(store)
    with Store.open(tmp_path / "s", SMALL) as store:
        assert store.epoch == FIRST
        assert store.kept_to("orders", 0, FIRST) is store.kept_at_open("orders", 0) is None


def test_a_loss_of_power_raises_the_epoch_and_tells_what_each_queue_kept(tmp_path: Path, machine: Machine) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, *(make_record(b"%d" % n, queue_id=n % 2) for n in range(6)))
    cut = store.max_physical_offset
    append(store, *(make_record(b"%d" % n, queue_id=n % 2) for n in range(6, 10)))
    append(store, make_record(queue_id=2))
    vanish(store)
    machine.lose_power(tmp_path / "s", cut)
    store = Store.open(tmp_path / "s", SMALL)
    assert store.epoch == FIRST + 1
    append(store, *(make_record(b"new %d" % n, queue_id=n % 2) for n in range(10)))
    assert store.max_offset("orders", 0) == 8
    assert [store.kept_to("orders", queue_id, FIRST) for queue_id in range(3)] == [3, 3, 0]
    assert [store.kept_at_open("orders", queue_id) for queue_id in range(3)] == [3, 3, 0]
    assert store.kept_to("orders", 0, store.epoch) is None
    store.close()
    with Store.open(tmp_path / "s", SMALL) as store:  # A clean start changes nothing for who comes only now.
        assert (store.epoch, store.kept_to("orders", 0, FIRST)) == (FIRST + 1, 3)
        assert store.kept_at_open("orders", 0) is None


@pytest.mark.parametrize("point", ["open.before_checkpoint", "checkpoint.before_state"])
def test_the_epoch_is_written_before_the_state_says_that_this_boot_has_seen_the_log(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    cut = store.max_physical_offset
    append(store, make_record())
    vanish(store)
    machine.lose_power(tmp_path / "s", cut)

    class Died(Exception):
        pass

    def die(name: str) -> None:
        if name == point:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "failpoint", die)
        with pytest.raises(Died):
            Store.open(tmp_path / "s", SMALL)
    with Store.open(tmp_path / "s", SMALL) as store:
        assert store.epoch > FIRST
        assert store.kept_to("orders", 0, FIRST) == 1


def test_looking_at_a_directory_changes_nothing(tmp_path: Path, machine: Machine) -> None:
    store = Store.open(tmp_path / "s", SMALL)
    append(store, make_record())
    end = store.max_physical_offset
    vanish(store)
    machine.lose_power(tmp_path / "s", end)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    Store.open(tmp_path / "copy", SMALL, read_only=True).close()
    assert not (tmp_path / "copy" / "raymq" / "epochs.json").exists()
