"""Damage files of a store, and check what opening it does."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.store import Store
from tests.store_records import SMALL, append, bodies, flip_byte, log_file, make_record, write_entries

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("batch_code")]

COUNT = 12
SIZE = len(make_record(b"00", keys="k0"))


def fill(directory: Path, *, clean: bool = True) -> None:
    """Make a store of twelve records in one file; `clean=False` leaves it as after a kill."""
    store = Store.open(directory, SMALL)
    for i in range(COUNT):
        append(store, make_record(b"%02d" % i, keys=f"k{i % 10}"))
    if clean:
        store.close()
    else:
        copy = directory.with_name(directory.name + ".copy")
        write_entries(store)
        shutil.copytree(directory, copy)
        store.close()
        shutil.rmtree(directory)
        copy.rename(directory)


def read_numbers(store: Store) -> list[int]:
    return [int(body) for body in bodies(store)] if store.topics() else []


def check_append_and_reopen(store: Store) -> None:
    """Append, and read everything, also after a reopen."""
    before = read_numbers(store)
    result = append(store, make_record(b"77", keys="again"))
    assert result.queue_offsets.tolist() == [len(before)]
    assert read_numbers(store) == [*before, 77]
    assert [record.body for record in store.query("orders", "again", 0, 1 << 60, 9)] == [b"77"]
    directory = store.directory
    store.close()
    with Store.open(directory, SMALL) as again:
        assert again.recovery.truncated_bytes == 0
        assert read_numbers(again) == [*before, 77]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in (1, 2))])
def test_log_cut_at_any_byte_keeps_whole_records(tmp_path: Path, clean: bool, first: int) -> None:
    fill(tmp_path / "whole", clean=clean)
    for cut in range((COUNT - 3) * SIZE + first, COUNT * SIZE + 1, 3):
        directory = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", directory)
        os.truncate(log_file(directory), cut)
        store = Store.open(directory, SMALL)
        survivors = cut // SIZE
        assert read_numbers(store) == list(range(survivors)), cut
        assert store.recovery.corruption == []
        assert store.max_physical_offset == survivors * SIZE
        assert [record.body for record in store.query("orders", "k1", 0, 1 << 60, 9)] == [
            b"%02d" % i for i in (11, 1) if i < survivors
        ]
        if clean:
            assert store.recovery.truncated_bytes == COUNT * SIZE - survivors * SIZE
        if cut % SIZE % 5 <= 1:  # After two of five cuts also check that the store works on.
            check_append_and_reopen(store)
        else:
            store.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("place", [0, 4, 30, 84, 88, 91])
def test_flipped_byte_is_reported_and_hides_one_record(tmp_path: Path, clean: bool, place: int) -> None:
    fill(tmp_path / "s", clean=clean)
    flip_byte(log_file(tmp_path / "s"), 3 * SIZE + place)
    with Store.open(tmp_path / "s", SMALL) as store:
        assert [(c.file, c.offset) for c in store.recovery.corruption] == [(str(log_file(tmp_path / "s")), 3 * SIZE)]
        assert store.recovery.truncated_bytes == 0
        assert (tmp_path / "s" / "raymq" / "damaged" / f"{3 * SIZE:020d}").stat().st_size == SIZE
        with pytest.raises(StoreCorrupt) as caught:
            store.read("orders", 0, 3)
        assert caught.value.offset == 3 * SIZE
        with store.read("orders", 0, 0) as before, store.read("orders", 0, 4) as behind:
            assert [int(record.body) for record in before.messages()] == [0, 1, 2]
            assert before.next_offset == 3
            assert [int(record.body) for record in behind.messages()] == list(range(4, COUNT))
        assert append(store, make_record()).queue_offsets.tolist() == [COUNT]


def test_flipped_byte_in_older_file_is_found_by_read(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        for i in range(60):
            append(store, make_record(b"%02d" % i, keys="kx"))
        flip_byte(log_file(tmp_path), 5 * SIZE + 88)
        with store.read("orders", 0, 0, 60) as lease:
            assert (len(lease), lease.next_offset) == (5, 5)
        with store.read("orders", 0, 6, 60) as lease:
            assert len(lease) == 54
        with pytest.raises(StoreCorrupt) as caught:
            store.read("orders", 0, 5, 60)
        assert (caught.value.file, caught.value.offset) == (str(log_file(tmp_path)), 5 * SIZE)
        with pytest.raises(StoreCorrupt):
            store.read_at(5 * SIZE)


def test_damaged_last_record_keeps_its_offset(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    flip_byte(log_file(tmp_path / "s"), (COUNT - 1) * SIZE + 88)
    with Store.open(tmp_path / "s", SMALL) as store:
        assert len(store.recovery.corruption) == 1
        assert append(store, make_record()).queue_offsets.tolist() == [COUNT]
        with pytest.raises(StoreCorrupt):
            store.read("orders", 0, COUNT - 1)


def test_incomplete_append_is_truncated(tmp_path: Path) -> None:
    """The first four bytes of an append are written last."""
    fill(tmp_path / "s", clean=False)
    path = log_file(tmp_path / "s")
    with path.open("r+b") as stream:
        stream.seek((COUNT - 3) * SIZE)
        stream.write(bytes(4))
    store = Store.open(tmp_path / "s", SMALL)
    assert store.recovery.corruption == []
    assert store.recovery.truncated_bytes == 3 * SIZE
    assert read_numbers(store) == list(range(COUNT - 3))
    check_append_and_reopen(store)


@pytest.mark.parametrize(
    "name", [f"commitlog/{4096:020d}", f"consumequeue/orders/0/{320:020d}", "index/99990101000000000"]
)
@pytest.mark.parametrize("size", [0, None])
def test_new_empty_file_changes_nothing(tmp_path: Path, name: str, size: int | None) -> None:
    fill(tmp_path / "s", clean=False)
    folder = (tmp_path / "s" / name).parent
    if size is None:
        size = next(folder.iterdir()).stat().st_size
    (tmp_path / "s" / name).touch()
    os.truncate(tmp_path / "s" / name, size)
    with Store.open(tmp_path / "s", read_only=True) as store:
        assert read_numbers(store) == list(range(COUNT))
    store = Store.open(tmp_path / "s", SMALL)
    assert read_numbers(store) == list(range(COUNT))
    check_append_and_reopen(store)


def remove_queue(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "orders")


def remove_queues(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue")


def remove_index(directory: Path) -> None:
    shutil.rmtree(directory / "index")


def remove_raymq_folder(directory: Path) -> None:
    shutil.rmtree(directory / "raymq")


def remove_derived_files(directory: Path) -> None:
    for name in ("consumequeue", "index", "raymq", "checkpoint"):
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def clear_last_queue_entries(directory: Path) -> None:
    path = max((directory / "consumequeue" / "orders" / "0").iterdir())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 200].ljust(len(content), b"\0"))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        remove_queue,
        remove_queues,
        remove_index,
        remove_raymq_folder,
        remove_derived_files,
        clear_last_queue_entries,
    ],
)
def test_lost_derived_data_is_rebuilt(tmp_path: Path, clean: bool, damage: Callable[[Path], None]) -> None:
    directory = tmp_path / "s"
    store = Store.open(directory, SMALL)
    for i in range(100):
        append(store, make_record(b"%02d" % i, keys=f"k{i}"))
    if not clean:
        write_entries(store)
        shutil.copytree(directory, tmp_path / "copy")
    store.close()
    if not clean:
        shutil.rmtree(directory)
        (tmp_path / "copy").rename(directory)
    damage(directory)

    store = Store.open(directory, SMALL)
    assert store.recovery.clean == clean
    assert read_numbers(store) == list(range(100))
    for i in range(100):
        assert [int(record.body) for record in store.query("orders", f"k{i}", 0, 1 << 60, 9)] == [i]
    check_append_and_reopen(store)


def test_open_after_another_boot_rebuilds_unsynced_entries(tmp_path: Path) -> None:
    """Another boot: unsynced pages may be lost anywhere; everything up to the checkpoint is there."""
    directory = tmp_path / "s"
    store = Store.open(directory, SMALL)
    for i in range(50):
        append(store, make_record(b"%02d" % i, keys=f"k{i}"))
    store.close()
    store = Store.open(directory, SMALL)
    for i in range(50, 60):
        append(store, make_record(b"%02d" % i, keys=f"k{i}"))
    shutil.copytree(directory, tmp_path / "copy")
    store.close()
    state = tmp_path / "copy" / "raymq" / "state.json"
    changed = CheckpointState.load(state)
    assert changed is not None
    changed.boot = "another"
    changed.save(state)
    lost = max((tmp_path / "copy" / "consumequeue" / "orders" / "0").iterdir())
    lost.write_bytes(bytes(lost.stat().st_size))
    with Store.open(tmp_path / "copy", SMALL) as store:
        assert read_numbers(store) == list(range(60))
        for i in range(60):
            assert len(store.query("orders", f"k{i}", 0, 1 << 60, 9)) == 1


def test_store_without_log_files_starts_empty(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "commitlog")
    with Store.open(tmp_path / "s", SMALL) as store:
        assert store.max_physical_offset == 0
        assert store.recovery.truncated_bytes == COUNT * SIZE
        append(store, make_record(b"00"))
        assert read_numbers(store) == [0]


def test_rebuilt_queue_starts_at_first_remaining_message(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        for i in range(100):
            append(store, make_record(b"%02d" % i, keys="kx"))
    log_file(tmp_path).unlink()
    with Store.open(tmp_path, SMALL) as store:
        first = store.min_offset("orders", 0)
        assert 0 < first < 100
        assert read_numbers(store) == list(range(first, 100))
    shutil.rmtree(tmp_path / "consumequeue")
    with Store.open(tmp_path, SMALL) as store:
        assert store.min_offset("orders", 0) == first
        assert store.max_offset("orders", 0) == 100
        assert read_numbers(store) == list(range(first, 100))
        name = min((tmp_path / "consumequeue" / "orders" / "0").iterdir())
        assert int(name.name) == first // 16 * 320
        assert name.read_bytes()[:20] == struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


@pytest.mark.parametrize("missing", [True, False])
def test_missing_or_resized_log_file_refuses_open(tmp_path: Path, missing: bool) -> None:
    with Store.open(tmp_path, SMALL) as store:
        for i in range(100):
            append(store, make_record(b"%02d" % i))
    if missing:
        log_file(tmp_path, 4096).unlink()
    else:
        os.truncate(log_file(tmp_path, 4096), 4000)
    with pytest.raises(StoreCorrupt) as caught:
        Store.open(tmp_path, SMALL)
    assert caught.value.file == str(log_file(tmp_path, 4096))
