"""Test that a search by key reads few records, in bounded steps, and is complete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.cooperative_steps import Steps, run_steps
from raymq.storage.log import message_reader
from raymq.storage.records import record as layout
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from tests.store_records import EXPIRING, SMALL, append, make_record

START_MS = 1_700_000_000_000
EVER_MS = 1 << 60
CONFIG = replace(EXPIRING, index_slots=16, index_entries=4_000)


class Clock:
    """Hold the store's time."""

    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(tmp_path, CONFIG, now_ms=clock) as opened:
        yield opened


class ReadCounter:
    """Count the records that were located, and those decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.located = self.decoded = 0
        locate, decode = layout.locate, layout.decode

        def locating(*args: object) -> object:
            self.located += 1
            return locate(*args)  # type: ignore[arg-type]

        def decoding(*args: object, **named: object) -> Record:
            self.decoded += 1
            return decode(*args, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(layout, "locate", locating)
        monkeypatch.setattr(layout, "decode", decoding)


def fill(store: Store, clock: Clock, count: int, *, key: str = "hot", every_ms: int = 1_000) -> None:
    """Append messages of one key, one every `every_ms`."""
    for number in range(count):
        append(store, make_record(b"%d" % number, keys=key))
        clock.ms += every_ms


def numbers(found: list[Record]) -> list[int]:
    return [int(record.body) for record in found]


def test_old_time_window_reads_only_its_own_records(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fault 13.27.
    fill(store, clock, 3_000)
    looked = ReadCounter(monkeypatch)
    found = store.query("orders", "hot", START_MS + 10_000, START_MS + 19_000, 100)
    assert numbers(found) == list(range(19, 9, -1))
    assert looked.decoded == 10
    assert looked.located <= 2 * 12, "the window, and what was stored in the seconds at its ends"


def test_empty_time_window_reads_no_record(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fault 13.27.
    fill(store, clock, 500)
    clock.ms += 3_600_000
    fill(store, clock, 500)
    looked = ReadCounter(monkeypatch)
    assert store.query("orders", "hot", START_MS + 1_000_000, START_MS + 2_000_000, 100) == []
    assert (looked.located, looked.decoded) == (0, 0)


def test_record_of_another_key_with_equal_hash_is_not_decoded(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fault 13.27: "Aa" and "BB" have one hash.
    fill(store, clock, 200, key="Aa")
    fill(store, clock, 3, key="BB")
    looked = ReadCounter(monkeypatch)
    assert numbers(store.query("orders", "BB", 0, EVER_MS, 100)) == [2, 1, 0]
    assert looked.decoded == 3


@pytest.mark.parametrize("window", [(0, 0), (0, 5), (3, 3), (7, 12), (39, 99), (0, 99), (-9, -1), (40, 99)])
def test_time_window_is_exact_by_store_time(store: Store, clock: Clock, window: tuple[int, int]) -> None:
    fill(store, clock, 40, every_ms=499)
    begin, end = (START_MS + 499 * seconds for seconds in window)
    expected = [n for n in range(39, -1, -1) if window[0] <= n <= window[1]]
    assert numbers(store.query("orders", "hot", begin, end, 100)) == expected
    inner = [n for n in expected if n not in window]
    assert numbers(store.query("orders", "hot", begin + 1, end - 1, 100)) == inner


def test_times_beyond_an_entrys_range_are_found(tmp_path: Path) -> None:
    # The times are before the file's first record, as by a clock that was set back, and 68 years later.
    from raymq.storage.log.index_file import IndexFile

    file = IndexFile(tmp_path / "1", 9, 100, writable=True)
    for place, stored_ms in enumerate((START_MS, START_MS - 9_000_000, START_MS + (1 << 31) * 1_000 + 9_000_000)):
        file.put_few([5], place, stored_ms, place)

    def found(begin_ms: int, end_ms: int) -> set[int]:
        return {place for place in file.find(5, begin_ms, end_ms) if place is not None}

    assert 1 in found(0, START_MS - 1)
    assert 2 in found(START_MS + (1 << 31) * 1_000 + 8_000_000, EVER_MS)
    assert found(START_MS + 5_000, START_MS + 6_000) == set()
    file.close()


def run_search_steps(search: Steps[list[Record]], between: list[tuple[int, int]], looked: ReadCounter) -> list[Record]:
    """Run the search; note how many records each step located and decoded."""
    while True:
        before = looked.located, looked.decoded
        try:
            aside = next(search)
        except StopIteration as end:
            between.append((looked.located - before[0], looked.decoded - before[1]))
            found: list[Record] = end.value
            return found
        between.append((looked.located - before[0], looked.decoded - before[1]))
        if aside is not None:
            aside()


def test_search_step_decodes_a_bounded_number_of_records(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fault 13.27: a long step blocks the event loop.
    monkeypatch.setattr(message_reader, "_BYTES_A_STEP", 10 * message_reader._BYTES_A_RECORD)
    monkeypatch.setattr(message_reader, "_ENTRIES_A_STEP", 64)
    fill(store, clock, 1_000)
    looked = ReadCounter(monkeypatch)
    between: list[tuple[int, int]] = []
    found = run_search_steps(store.search("orders", "hot", 0, EVER_MS, 1_000), between, looked)
    assert numbers(found) == list(range(999, -1, -1))
    assert len(between) > 100
    assert max(decoded for _, decoded in between) <= 10


def test_search_step_reads_a_bounded_number_of_entries(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_reader, "_ENTRIES_A_STEP", 64)
    fill(store, clock, 1_000)
    looked_at = list(store._dispatcher.index.find("orders", "hot", START_MS, START_MS))
    assert len(looked_at) >= 1_000, "each entry that is passed over counts"
    asides = 0
    for aside in store.search("orders", "hot", START_MS, START_MS, 10):
        if aside is not None:
            aside()
            asides += 1
    assert asides >= 1_000 // 64


def test_search_maps_no_index_file(tmp_path: Path, clock: Clock) -> None:
    # Fault 13.27: without a window all files are searched, and each mapping was made on the event loop.
    config = replace(CONFIG, index_entries=40)
    with Store.open(tmp_path, config, now_ms=clock) as store:
        fill(store, clock, 800)
    with Store.open(tmp_path, config, now_ms=clock) as store:
        files = store._dispatcher.index._files
        assert len(files) > 20
        mapped = [file._file for file in files]
        assert len(store.query("orders", "hot", 0, EVER_MS, 1_000)) == 800
        assert [file._file for file in files] == mapped


def test_appends_and_expiry_between_search_steps_are_safe(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_reader, "_ENTRIES_A_STEP", 16)
    config = replace(CONFIG, index_entries=100)
    with Store.open(tmp_path, config, now_ms=clock) as store:
        fill(store, clock, 2_000)
        store.flush()
        search = store.search("orders", "hot", 0, EVER_MS, 5_000)
        for _ in range(40):
            aside = next(search)
            if aside is not None:
                aside()
        clock.ms += 2 * 3_600_000
        append(store, make_record(b"9999", keys="hot"))
        store.flush()
        assert store.delete_expired().log_files > 0
        assert store.wait_for_removals(10)
        names = {path.name for path in (tmp_path / "index").iterdir()}
        between: list[tuple[int, int]] = []
        found = numbers(run_search_steps(search, between, ReadCounter(monkeypatch)))
        assert found == list(range(1_999, found[-1] - 1, -1)), "newest first, none missing, none twice"
        assert {path.name for path in (tmp_path / "index").iterdir()} == names, "no file is made by looking for it"


@pytest.mark.parametrize(("most", "of_bytes", "expected"), [(5, None, 5), (50, 7.5, 7), (50, 0.5, 1), (50, None, 20)])
def test_search_stops_at_its_limits(
    store: Store, clock: Clock, most: int, of_bytes: float | None, expected: int
) -> None:
    # `of_bytes` is in records.
    fill(store, clock, 20)
    max_bytes = None if of_bytes is None else int(of_bytes * len(make_record(b"00", keys="hot")))
    found = run_steps(store.search("orders", "hot", 0, EVER_MS, most, max_bytes))
    assert numbers(found) == list(range(19, 19 - expected, -1))


def test_index_file_lost_before_the_first_checkpoint_is_rebuilt(tmp_path: Path) -> None:
    store = Store.open(tmp_path, replace(SMALL, flush_interval_ms=10_000_000))
    for number in range(50):
        append(store, make_record(b"body", keys=f"k{number}"))
    store._flusher.stop()
    store._abandon()
    first, second = sorted((tmp_path / "index").iterdir())
    assert second.exists()
    first.unlink()
    with Store.open(tmp_path, SMALL) as store:
        assert [len(store.query("orders", f"k{number}", 0, 1 << 62, 9)) for number in range(50)] == [1] * 50
