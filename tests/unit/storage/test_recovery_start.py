"""Test that a start checks only the log's newest part, with the result of a full check."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt
from raymq.storage.log import recovery, recovery_start
from raymq.storage.log.recovery_start import RecoveryStart
from raymq.storage.records.record import OFFSET_BODY
from raymq.storage.store import Store
from tests.store_records import SMALL, append, bodies, flip_byte, make_record

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 20, flush_interval_ms=3_600_000)
WINDOW = 2_000


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_start, "MIN_RECHECK_BYTES", WINDOW)
    monkeypatch.setattr(recovery_start, "_APART_BYTES", 300)


@pytest.mark.parametrize(
    ("first", "noted", "end", "expected"),
    [
        (0, [], 10_000, 0),
        (0, [1_000, 5_000], 3_000, 1_000),
        (0, [1_000, 5_000], 6_999, 1_000),
        (0, [1_000, 5_000], 7_000, 5_000),
        (0, [1_000, 1_100, 1_299], 9_000, 1_000),  # near to each other, one of them is enough
        (4_000, [4_100], 90_000, 4_000),
        (4_000, [4_400], 90_000, 4_400),
    ],
)
def test_recovery_starts_at_a_noted_place_before_the_window(
    first: int, noted: list[int], end: int, expected: int
) -> None:
    start = RecoveryStart(first)
    for place in noted:
        start.note(place)
    assert start.before(end) == expected


def open_filled_store(directory: Path, count: int) -> Store:
    store = Store.open(directory, CONFIG)
    for number in range(len(bodies(store)) if store.topics() else 0, count):
        append(store, make_record(b"%d" % number, keys=f"k{number}"))
        if number % 7 == 0:
            store._save_checkpoint()
    return store


def check(store: Store, count: int) -> None:
    assert bodies(store) == [b"%d" % number for number in range(count)]
    for number in range(0, count, 11):
        assert [r.body for r in store.query("orders", f"k{number}", 0, 1 << 62, 5)] == [b"%d" % number]
    assert not store.recovery.corruption


@pytest.mark.parametrize("end", ["clean", "killed", "killed without its newest entries"])
def test_start_checks_only_the_newest_part(tmp_path: Path, end: str) -> None:
    store = open_filled_store(tmp_path / "s", 400)
    log_end = store.max_physical_offset
    if end == "clean":
        store.close()
        directory = tmp_path / "s"
    else:
        directory = tmp_path / "killed"
        shutil.copytree(tmp_path / "s", directory)
        store.close()
    if end == "killed without its newest entries":
        saved = json.loads((directory / "raymq" / "state.json").read_text())["queues"]["orders"]["0"]
        for path in (directory / "consumequeue" / "orders" / "0").iterdir():
            keep = max(0, min(16, saved - int(path.name) // 20)) * 20
            path.write_bytes(path.read_bytes()[:keep].ljust(320, b"\0"))
    for _ in range(3):
        with Store.open(directory, CONFIG) as again:
            assert WINDOW <= log_end - again.recovery.walked_from <= WINDOW + 7 * 300
            assert again.recovery.records < 60
            check(again, 400)


def test_damage_before_the_start_place_is_found_on_read(tmp_path: Path) -> None:
    with open_filled_store(tmp_path, 400) as store:
        place = int(store.entries("orders", 0, 100, 1)[0][0])
    flip_byte(tmp_path / "commitlog" / ("0" * 20), place + OFFSET_BODY)
    with Store.open(tmp_path, CONFIG) as store:
        assert store.recovery.walked_from > place
        with pytest.raises(StoreCorrupt) as caught, store.read("orders", 0, 100, 1):
            pass
        assert caught.value.queue_offset == 100
        with store.read("orders", 0, 101, 1_000) as lease:
            assert len(lease.messages()) == 299


@pytest.mark.parametrize("place", [3, 50, 1 << 30, -7])
def test_start_place_without_a_record_is_ignored(tmp_path: Path, place: int) -> None:
    open_filled_store(tmp_path, 400).close()
    path = tmp_path / "raymq" / "state.json"
    fields = json.loads(path.read_text())
    del fields["crc"]
    fields["walk_from"] = place
    path.write_text(json.dumps(fields | {"crc": zlib.crc32(json.dumps(fields).encode())}))
    with Store.open(tmp_path, CONFIG) as store:
        assert store.recovery.walked_from == 0
        check(store, 400)


def test_older_state_without_start_place_checks_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_BATCH_RECORDS", 20)
    open_filled_store(tmp_path, 400).close()
    path = tmp_path / "raymq" / "state.json"
    fields = json.loads(path.read_text())
    del fields["crc"], fields["walk_from"]
    path.write_text(json.dumps(fields))
    with Store.open(tmp_path, CONFIG) as store:
        assert store.recovery.walked_from == 0
    with Store.open(tmp_path, CONFIG) as store:
        assert store.recovery.walked_from > 0


def test_new_log_file_is_checked_from_its_begin(tmp_path: Path) -> None:
    # The noted place lies in the file before.
    config = replace(CONFIG, commitlog_file_bytes=4_096)
    with Store.open(tmp_path, config) as store:
        while store.max_physical_offset < 5 * 4_096 + 500:
            append(store, make_record(b"x"))
        count = len(bodies(store))
    with Store.open(tmp_path, config) as store:
        assert store.recovery.walked_from == 5 * 4_096
        assert len(bodies(store)) == count
