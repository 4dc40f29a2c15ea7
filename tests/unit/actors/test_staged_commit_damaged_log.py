"""Test that a commit searching the log passes damaged records and reports undecided rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.records import record as layout
from raymq.storage.records.record import encode
from raymq.storage.staged_topic import STAGED_TOPIC
from tests import staged_rows
from tests.unit.actors.bench import Bench

PARTS = [f"part{number}" for number in range(4)]
BODIES = [b"row %d" % number for number in range(20)]

#: Where a bit flips in a record.
FIELDS = {
    "size": layout.OFFSET_SIZE + 3,
    "large size": layout.OFFSET_SIZE,
    "magic": layout.OFFSET_MAGIC,
    "place": layout.OFFSET_PHYSICAL_OFFSET + 7,
    "body length": layout.OFFSET_BODY_LENGTH + 3,
    "body": layout.OFFSET_BODY,
}


def row(body: bytes, topic: str = "t") -> bytes:
    return encode(topic, 0, body, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))


def join_rows(rows: list[bytes]) -> tuple[memoryview, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return memoryview(b"".join(rows)), np.array([len(each) for each in rows], np.int32)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.core.topics.create("t", 1)
    made.core.topics.create("u", 1)
    yield made
    made.store.close()


def append(bench: Bench, body: bytes, topic: str = "t") -> int:
    """Append another producer's message; return its place in the log."""
    place = bench.store.max_physical_offset
    bench.core.append(topic, 0, *join_rows([row(body, topic)]))
    return place


def interrupt_commit(bench: Bench, through: int, bodies: list[bytes] = BODIES) -> list[int]:
    """Interrupt a commit of four chunks by a power loss; return its row places."""
    for number, part in enumerate(PARTS):
        rows = [row(body) for body in bodies[5 * number : 5 * number + 5]]
        staged_rows.stage(bench.core.staging, "tx", part, 0, ("t", 0), *join_rows(rows), "home")
    begin = bench.store.max_physical_offset
    for number, _ in enumerate(staged_rows.commit(bench.core.staging, "tx", PARTS, 20), 1):
        if number == through:
            break
    places = [each.physical_offset for each in bench.store.walk(begin)]
    lose_power(bench)
    return places


def lose_power(bench: Bench) -> None:
    staged_rows.lose_power(bench.store)


def flip(bench: Bench, place: int, field: str = "body") -> None:
    log = bench.store._log
    file = log.files.file_at(place)
    file.view[place - file.start + FIELDS[field]] ^= 1


def finish_commit(bench: Bench) -> int:
    """Finish the commit; return how many of its rows are missing."""
    sum(staged_rows.commit(bench.core.staging, "tx", PARTS, 20))
    staged_rows.close(bench.core.staging, "tx")
    assert not bench.store.read_barrier.is_active
    missing = bench.core.staging.table.missing("tx")
    return 0 if missing is None else missing.rows


def readable_bodies(bench: Bench) -> Counter[bytes]:
    log = bench.store._log
    found = bench.store.salvage_walk(log.min_offset)
    return Counter(each.body for each in found if isinstance(each, layout.Record) and each.topic != STAGED_TOPIC)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("which", [0, 7, 14], ids=["head", "middle", "last"])
def test_damaged_row_is_reported_missing_without_duplicates(bench: Bench, which: int, field: str) -> None:
    places = interrupt_commit(bench, 3)
    flip(bench, places[which], field)
    assert finish_commit(bench) == 1
    assert readable_bodies(bench) == Counter(BODIES) - Counter([BODIES[which]])
    assert bench.store.max_offset("t", 0) == 20
    notes = bench.core.set_aside.notes()
    assert [note.physical_offset for note in notes if note.physical_offset >= 0] == [places[which]]
    assert len(notes) == 2
    assert "damaged" in str(bench.core.staging.table.missing("tx"))


@pytest.mark.parametrize("topic", ["t", "u"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_damaged_foreign_record_costs_at_most_one_row(bench: Bench, topic: str, *, before: bool) -> None:
    """Check that it costs no row where queue offsets exclude rows of the commit."""
    for number, part in enumerate(PARTS):
        rows = [row(body) for body in BODIES[5 * number : 5 * number + 5]]
        staged_rows.stage(bench.core.staging, "tx", part, 0, ("t", 0), *join_rows(rows), "home")
    begun = staged_rows.begin(bench.core.staging, "tx", PARTS, 20)
    place = append(bench, b"somebody else's", topic) if before else -1
    assert next(begun.append()) == 5
    if not before:
        place = append(bench, b"somebody else's", topic)
    lose_power(bench)
    flip(bench, place)
    assert finish_commit(bench) == (0 if before and topic == "u" else 1)
    assert max(readable_bodies(bench).values()) == 1


def test_each_damaged_equal_row_is_reported_missing(bench: Bench) -> None:
    alike = [b"%d" % (number % 3) for number in range(20)]
    places = interrupt_commit(bench, 3, alike)
    for which in (1, 2, 9, 14):
        flip(bench, places[which])
    assert finish_commit(bench) == 4
    assert sum(readable_bodies(bench).values()) == 16
    assert bench.store.max_offset("t", 0) == 20
    assert all(readable_bodies(bench)[body] <= count for body, count in Counter(alike).items())


def test_rows_after_missing_row_are_found(bench: Bench) -> None:
    """Check that records passed before the log's end count for all later chunks."""
    places = interrupt_commit(bench, 4)
    flip(bench, places[1])
    assert sum(staged_rows.commit(bench.core.staging, "tx", PARTS, 20)) == 0
    assert max(readable_bodies(bench).values()) == 1


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
def test_second_interruption_reports_same_missing_rows(bench: Bench, *, power: bool) -> None:
    places = interrupt_commit(bench, 2)
    for which in (0, 9):
        flip(bench, places[which])
    added = 0
    for count in staged_rows.commit(bench.core.staging, "tx", PARTS, 20):
        added += count
        if added:
            break
    if power:
        lose_power(bench)
    else:
        staged_rows.clamp(bench.store, memory_lost=False)
    assert finish_commit(bench) == 2
    assert readable_bodies(bench) == Counter(BODIES) - Counter([BODIES[0], BODIES[9]])


def test_hole_in_log_is_reported_once_and_skipped(bench: Bench) -> None:
    places = interrupt_commit(bench, 3)
    file = bench.store._log.files.file_at(places[0])
    hole = slice(places[3] - file.start, places[11] - file.start)
    file.view[hole] = bytes(hole.stop - hole.start)
    assert finish_commit(bench) == 8
    assert readable_bodies(bench) == Counter(BODIES) - Counter(BODIES[3:11])
    assert [note.physical_offset for note in bench.core.set_aside.notes() if note.physical_offset >= 0] == [places[3]]
